# SPDX-License-Identifier: MIT
"""`qlora-data generate`: answers a prompt or the rows of a file with a model
that generates. `qlora generate` starts it:

    qlora-data generate --model MODEL_DIR [options] -- qlora-run PROGRAM ...

The command after `--` is the engine (engine.py)."""

from __future__ import annotations

import argparse
import sys

from .answers import answer_file
from .arguments import Parser, positive
from .decoding import Answer
from .engine import Engine
from .environment import ensure_packages
from .errors import DataError
from .model_files import ModelFiles
from .prompts import Prompts
from .sampling import Sampling, add_sampling_flags, sampling_of


def answering_parser(name: str, description: str) -> Parser:
    """Returns a parser with the flags of all commands that answer."""
    parser = Parser(prog=f"qlora-data {name}", allow_abbrev=False,
                    usage="%(prog)s --model DIR [options] -- ENGINE ...",
                    description=description)
    add = parser.add_argument
    add("--model", required=True, metavar="DIR",
        help="folder with tokenizer and generation_config.json")
    add("--chat-template", metavar="FILE|NAME",
        help="chat template to use instead of the tokenizer's")
    add("--system", metavar="TEXT", help="system message")
    add_sampling_flags(parser)
    return parser


def _parser() -> Parser:
    parser = answering_parser("generate",
                              "Answers prompts. qlora generate calls it.")
    add = parser.add_argument
    add("--prompt", metavar="TEXT",
        help="prompt (default, without --input: standard input)")
    add("--input", metavar="PATH", help="rows to answer")
    add("--output", metavar="FILE", help="JSONL file for the answers of rows; "
        "rows that it has already are skipped (default: standard output)")
    add("--ranks", type=positive, default=1, metavar="N",
        help="start N engines, which share the rows of --input; each sees one "
        "GPU of CUDA_VISIBLE_DEVICES (default: 1)")
    add("--logprobs", type=int, default=0, metavar="N",
        help="add log-probabilities of the likeliest N tokens of each step")
    return parser


def parse_with_engine(parser: Parser, arguments: list[str]
                      ) -> tuple[argparse.Namespace, list[str]]:
    """Returns the flags, and the engine's command. `arguments` begin with the
    name of the command."""
    own, command = arguments[1:], []
    if "--" in own:
        end = own.index("--")
        own, command = own[:end], own[end + 1:]
    args = parser.parse_args(own)
    if not command:
        parser.error("expects the command of an engine after --")
    return args, command


def _read_prompt() -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise DataError("not UTF-8", "write the prompt in UTF-8",
                        "standard input") from None
    return text.removesuffix("\n")


def _answer_prompt(text: str, prompts: Prompts, sampling: Sampling,
                   command: list[str]) -> None:
    """Prints the answer while it is generated. An interrupted answer is kept.
    """
    ids = prompts.of_text(text)
    ends, stream = prompts.answer(sampling.stops)
    answer = Answer(stream)
    sys.stdout.reconfigure(errors="backslashreplace")
    with Engine(command) as engine:
        engine.send(sampling.request(0, ids, ends))
        try:
            while not answer.finish:
                line = engine.receive()
                if "error" in line:
                    raise DataError(line["error"])
                print(answer.add(line), end="", flush=True)
        finally:
            if answer.ids:
                print(answer.rest(), flush=True)
        engine.send({"cancel": 0})  # if it ended at a stop string
        if answer.finish == "length" and \
                len(ids) + len(answer.ids) >= engine.capacity:
            print(f"qlora-data: note: the answer ends here, because a row has "
                  f"at most {engine.capacity} tokens. Fix: a larger "
                  "--generation-length", file=sys.stderr)


def generate(arguments: list[str]) -> None:
    """Runs the command. `arguments` begin with its name."""
    parser = _parser()
    args, command = parse_with_engine(parser, arguments)
    if args.ranks > 1 and args.input is None:
        parser.error("--ranks needs --input: one rank answers a prompt")
    missing = None
    try:
        ensure_packages(arguments)
    except DataError as error:  # rows of ids need no packages
        missing = error
    files = ModelFiles(args.model)
    prompts = Prompts(files, args.chat_template, args.system, missing)
    sampling = sampling_of(files, args)
    if args.input is not None:
        answer_file(args.input, args.output, prompts, sampling, command,
                    args.ranks)
        return
    text = _read_prompt() if args.prompt is None else args.prompt
    _answer_prompt(text, prompts, sampling, command)
