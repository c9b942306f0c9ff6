# SPDX-License-Identifier: MIT
"""Flags that decide how rows become tokens."""

from __future__ import annotations

import argparse

from .arguments import boolean, positive
from .columns import Columns
from .model_files import SHIPPED
from .shapes import FORMATS


def add_row_flags(parser: argparse.ArgumentParser) -> None:
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
        "turns: instruction and output as turns of the chat template; the "
        "last six: axolotl's prompts")
    add("--vocab-size", type=positive, metavar="V",
        help="refuse token ids of V and above (default: no limit)")
    add("--completion-only-loss", type=boolean, default=True,
        metavar="true|false", help="of prompt and completion, "
        "only the completion is in the loss (default: true)")
    add("--assistant-only-loss", type=boolean, default=True,
        metavar="true|false", help="for conversations: only the "
        "assistant's turns are in the loss (default: true)")
    add("--allow-template-drops", type=boolean, default=False,
        metavar="true|false", help="accept conversations whose tools, tool "
        "calls, messages or reasoning the chat template drops (default: false)")
    add("--drop-system-messages", action="store_true",
        help="leave out the system message at the start of a conversation")
    add("--eos-token", default="", metavar="TOKEN",
        help="token of the vocabulary that ends texts and completions, instead "
        "of the tokenizer's")
    add("--chat-template", metavar="FILE|NAME",
        help="chat template to use instead of the tokenizer's: a Jinja file, "
        "or " + ", ".join(SHIPPED))


def columns_of(args: argparse.Namespace) -> Columns:
    columns = Columns()
    for column in args.column:
        columns.add(column)
    return columns
