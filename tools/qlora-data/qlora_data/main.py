# SPDX-License-Identifier: MIT
"""Command line of qlora-data: prints one summary or one error."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from importlib import import_module

from .arguments import Parser, positive
from .environment import ensure_packages
from .errors import DataError
from .hub import COMMANDS, run_command
from .notices import report
from .progress import progress_writer
from .row_flags import add_row_flags, columns_of
from .safetensors import write_safetensors


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="qlora-data", allow_abbrev=False, description=(
        "Tokenizes rows of text or chat into token ids and labels for "
        "qlora-run."), epilog="qlora-data generate --help: answers to prompts; "
        "qlora-data chat --help: a conversation; qlora-data metrics --help: "
        "scores of answers")
    add = parser.add_argument
    add_row_flags(parser)
    add("--output", metavar="FILE",
        help="token file to write (safetensors)")
    add("--max-length", type=positive, metavar="N",
        help="maximum tokens of a row (default: no limit)")
    add("--excess-length-strategy", default="truncate",
        choices=("truncate", "split", "windows", "drop", "raise"),
        help="rows longer than --max-length: cut them, split them, split texts "
        "into rows that overlap by 256 tokens, leave them out, or refuse them")
    add("--packing-strategy", default="",
        choices=("wrapped", "llamafactory-wrapped"),
        help="join all rows and cut them at --max-length, as TRL or "
        "LLaMA-Factory does")
    add("--min-length", type=positive, default=0, metavar="N",
        help="leave out rows of fewer tokens (default: none)")
    add("--drop-duplicates", action="store_true", help="leave out rows with "
        "the same tokens and labels as an earlier row")
    add("--max-samples", type=positive, metavar="N",
        help="read only the first N rows of the data (default: all)")
    add("--pairs", action="store_true", help="rows have a chosen and a "
        "rejected answer (DPO, ORPO); each becomes two rows")
    add("--unpaired", action="store_true", help="rows have one answer and a "
        "'label': whether it is desirable (KTO)")
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


# Module and function of each command that is a program of its own. They are
# imported when they run: some need packages.
_PROGRAMS = {
    "chat": ("chat", "chat"),
    "end-tokens": ("end_tokens", "print_end_tokens"),
    "evaluate": ("evaluate", "evaluate"),
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
    if args.packing_strategy and not args.max_length:
        parser.error("--packing-strategy needs --max-length: add it")
    joins = args.packing_strategy or args.excess_length_strategy in (
        "split", "windows")
    if joins and (args.pairs or args.unpaired):
        parser.error("--pairs and --unpaired need rows that are not joined or "
                     "split: remove --packing-strategy, or use truncate")
    columns_of(args)  # mistakes in them need no packages
    ensure_packages(arguments)
    if args.print_key:
        from .cache_key import cache_key
        print(cache_key(args))
        return
    # Not imported earlier: it needs the packages.
    from .conversion import converter_of
    converter = converter_of(args)
    if args.show:
        from .show import show
        counts = show(converter, args.input,
                      args.rows or range(1, args.num_rows + 1),
                      args.token_ids, args.json)
        report(args.input, counts, args.max_length)
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
    report(args.input, rows.counts, args.max_length)
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
