# SPDX-License-Identifier: MIT
"""Command line of qlora-data: prints one summary or one error."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from importlib import import_module

from .arguments import Parser, boolean, positive
from .columns import Columns
from .environment import ensure_packages
from .errors import DataError
from .hub import COMMANDS, run_command
from .model_files import SHIPPED
from .progress import progress_writer
from .safetensors import write_safetensors
from .shapes import FORMATS


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="qlora-data", allow_abbrev=False, description=(
        "Tokenizes rows of text or chat into token ids and labels for "
        "qlora-run."), epilog="qlora-data generate --help: answers to prompts; "
        "qlora-data chat --help: a conversation; qlora-data metrics --help: "
        "scores of answers")
    add = parser.add_argument
    add("--tokenizer", required=True, metavar="MODEL_DIR",
        help="folder with tokenizer.json and tokenizer_config.json")
    add("--input", required=True, metavar="PATH",
        help="rows: a JSONL, JSON, CSV, TSV or Parquet file, compressed or "
        "not, or a folder of them")
    add("--column", action="append", default=[], metavar="NAME=COLUMN",
        help="name of a column in the data, such as prompt=question; system= "
        "ignores a column; repeatable")
    add("--row-format", action="append", default=[], choices=FORMATS,
        help="accepted format of rows, repeatable (default: all formats); "
        "turns: instruction and output as turns of the chat template")
    add("--output", metavar="FILE",
        help="token file to write (safetensors)")
    add("--max-length", type=positive, metavar="N",
        help="maximum tokens of a row (default: no limit)")
    add("--excess-length-strategy", default="truncate",
        choices=("truncate", "drop", "raise"),
        help="cut rows longer than --max-length, leave them out, or refuse "
        "them")
    add("--vocab-size", type=positive, metavar="V",
        help="refuse token ids of V and above (default: no limit)")
    add("--completion-only-loss", type=boolean, default=True,
        metavar="true|false", help="of prompt and completion, "
        "only the completion is in the loss (default: true)")
    add("--assistant-only-loss", type=boolean, default=True,
        metavar="true|false", help="for conversations: only the "
        "assistant's turns are in the loss (default: true)")
    add("--pairs", action="store_true", help="rows have a chosen and a "
        "rejected answer (DPO, ORPO); each becomes two rows")
    add("--unpaired", action="store_true", help="rows have one answer and a "
        "'label': whether it is desirable (KTO)")
    add("--allow-template-drops", type=boolean, default=False,
        metavar="true|false", help="accept conversations whose tools, tool "
        "calls, messages or reasoning the chat template drops (default: false)")
    add("--chat-template", metavar="FILE|NAME",
        help="chat template to use instead of the tokenizer's: a Jinja file, "
        "or " + ", ".join(SHIPPED))
    add("--workers", type=positive, metavar="N",
        help="processes for a large file, at most 16 (default: one per CPU)")
    add("--progress", action="store_true", help="write 'qlora-data: progress: "
        "DONE TOTAL' lines on stderr, in bytes of the data")
    add("--print-key", action="store_true", help="only print a hash of all "
        "that the tokens depend on: data, tokenizer, templates, options, "
        "versions")
    add("--show", action="store_true", help="only print rows, with the "
        "tokens in the loss marked")
    add("--num-rows", type=positive, default=3, metavar="N",
        help="with --show: the first N rows")
    add("--rows", type=positive, nargs="+", metavar="N",
        help="with --show: the rows of these numbers, from 1")
    add("--token-ids", action="store_true",
        help="with --show: one token per line, with its id")
    add("--json", action="store_true",
        help="with --show: one JSON object per row")
    return parser


def _metadata(source: str, summary: dict[str, int],
              max_length: int | None) -> dict[str, str]:
    name = os.fsencode(os.path.basename(source.rstrip("/"))).decode(
        "utf-8", "replace")
    metadata = {"format": "qlora-rows", "version": "1", "source": name}
    if max_length:
        metadata["max_length"] = str(max_length)
    metadata.update({key: str(value) for key, value in summary.items()})
    return metadata


def _warn(place: str | None, text: str, kind: str = "warning") -> None:
    """Prints the text about `place`; does nothing if `place` is empty."""
    if place:
        print(f"qlora-data: {kind}: {place}: {text}", file=sys.stderr)


def _report(source: str, counts, max_length: int | None) -> None:
    """Warns about rows that the conversion changed or left out."""
    if counts.chosen_template:
        _warn(source,
              f"uses the chat template {counts.chosen_template} instead of the "
              "model's own, which changes earlier turns", "note")
    rows, first = counts.kinds, counts.first.get
    _warn(first("split"),
          f"{rows['split']} conversations are split into several rows, "
          "because the chat template writes earlier turns differently "
          "once later turns follow; this is the first", "note")
    _warn(first("unreasoned"),
          f"the chat template drops the reasoning of {rows['unreasoned']} "
          "conversations, so it is not trained on; this is the first")
    _warn(first("dropping"),
          "the chat template drops tools, tool calls or messages of "
          f"{rows['dropping']} conversations, so they are not trained on; "
          "this is the first")
    _warn(first("truncated"),
          f"{rows['truncated']} rows cut to {max_length} tokens, losing "
          f"{counts.truncated_tokens} tokens; this is the first")
    _warn(first("cut_off"),
          f"{rows['cut_off']} rows left out because --max-length {max_length} "
          "cuts off their answer; this is the first, and the shortest has "
          f"{counts.shortest_cut_off} tokens")
    _warn(first("too_long"),
          f"{rows['too_long']} rows left out because they have more than "
          f"{max_length} tokens; this is the first")
    _warn(first("masked"),
          f"{rows['masked']} rows left out because none of their tokens is in "
          "the loss; this is the first")


# Module and function of each command that is a program of its own. They are
# imported when they run: some need packages.
_PROGRAMS = {
    "chat": ("chat", "chat"),
    "end-tokens": ("end_tokens", "print_end_tokens"),
    "generate": ("generation", "generate"),
    "gguf": ("gguf_vocabulary", "gguf"),
    "metrics": ("metrics", "metrics"),
    "serve": ("serve", "serve"),
}


def _run(arguments: list[str]) -> None:
    if arguments and arguments[0] in COMMANDS:
        run_command(arguments)
        return
    if arguments and arguments[0] in _PROGRAMS:
        module, function = _PROGRAMS[arguments[0]]
        getattr(import_module(f".{module}", __package__), function)(arguments)
        return
    parser = _parser()
    args = parser.parse_args(arguments)
    if not (args.output or args.print_key or args.show):
        parser.error("the following arguments are required: --output")
    if args.pairs and args.unpaired:
        parser.error("--pairs and --unpaired are other rows: leave one out")
    columns = Columns()
    for column in args.column:
        columns.add(column)
    ensure_packages(arguments)
    if args.print_key:
        from .cache_key import cache_key
        print(cache_key(args))
        return
    # Not imported earlier: these modules need the packages.
    from .convert import Converter, Options
    from .marks import LossRule
    from .model_files import ModelFiles
    # Preference training uses all tokens of the answers, as in TRL.
    compares = args.pairs or args.unpaired
    rule = LossRule(True, False) if compares else LossRule(
        args.completion_only_loss, args.assistant_only_loss)
    options = Options(args.max_length, args.vocab_size, rule,
        args.chat_template, args.workers, columns, args.pairs, args.unpaired,
        args.allow_template_drops, tuple(args.row_format),
        args.excess_length_strategy)
    converter = Converter(ModelFiles(args.tokenizer), options)
    if args.show:
        from .show import show
        counts = show(converter, args.input,
                      args.rows or range(1, args.num_rows + 1),
                      args.token_ids, args.json)
        _report(args.input, counts, args.max_length)
        return
    with progress_writer(args.progress) as progress:
        rows = converter.convert(args.input, args.output, progress)
    summary = rows.summary()
    metadata = _metadata(args.input, summary, args.max_length)
    if args.pairs:
        metadata["pairs"] = "true"
    if rows.counts.chosen_template:
        metadata["chosen_template"] = rows.counts.chosen_template
    for kind in ("split", "unreasoned", "dropping", "too_long"):
        if number := rows.counts.kinds[kind]:
            metadata[f"{kind}_rows"] = str(number)
    write_safetensors(args.output, rows.tensors, metadata)
    _report(args.input, rows.counts, args.max_length)
    print(json.dumps(summary, separators=(",", ":")))


def _stop(number, _frame):
    # Ignore further signals while the file and the workers are removed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(128 + number)


def main(arguments: list[str]) -> int:
    # _stop() raises inside the writer, which then removes its temporary file.
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        _run(arguments)
    except BrokenPipeError:  # the reader of --show has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except DataError as error:
        print(f"qlora-data: error: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("qlora-data: error: out of memory; free some "
              "memory", file=sys.stderr)
        return 1
    return 0
