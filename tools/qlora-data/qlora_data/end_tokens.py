# SPDX-License-Identifier: MIT
"""`qlora-data end-tokens`: prints the tokens at which answers of a model end,
as `qlora-data generate` knows them. qlora-run calls it to generate answers
during training:

    {"end_tokens": [2, 7], "stop_strings": ["###"]}

`stop_strings` are those of generation_config.json that are not tokens, so only
text can end there."""

from __future__ import annotations

import json

from .arguments import Parser
from .environment import ensure_packages
from .model_files import ModelFiles
from .prompts import Prompts
from .sampling import end_tokens_of, stop_strings_of


def print_end_tokens(arguments: list[str]) -> None:
    """Runs the command. `arguments` begin with its name."""
    parser = Parser(prog="qlora-data end-tokens", allow_abbrev=False,
                    description="Prints the end tokens of a model's answers. "
                    "qlora-run calls it.")
    parser.add_argument("--model", required=True, metavar="DIR",
                        help="folder with tokenizer and config.json")
    parser.add_argument("--chat-template", metavar="FILE|NAME",
                        help="chat template to use instead of the tokenizer's")
    parser.add_argument("--eos-token", default="", metavar="TOKEN",
                        help="end token to use instead of the tokenizer's")
    args = parser.parse_args(arguments[1:])
    ensure_packages(arguments)
    files = ModelFiles(args.model, args.eos_token)
    stops = stop_strings_of(files)
    prompts = Prompts(files, args.chat_template, None)
    ids, _ = prompts.answer(stops)
    special = prompts.converter.tokenizer.added_tokens
    print(json.dumps({"end_tokens": sorted({*end_tokens_of(files), *ids}),
                      "stop_strings": [stop for stop in stops
                                       if stop not in special]}))
