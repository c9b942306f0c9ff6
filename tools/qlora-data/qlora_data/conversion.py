# SPDX-License-Identifier: MIT
"""Makes the converter that a command line describes. Needs the packages."""

from __future__ import annotations

import argparse

from .convert import Converter, Options
from .marks import LossRule
from .model_files import ModelFiles
from .row_flags import columns_of


def converter_of(args: argparse.Namespace) -> Converter:
    # Preference training uses all tokens of the answers, as in TRL.
    compares = args.pairs or args.unpaired
    rule = LossRule(True, False) if compares else LossRule(
        args.completion_only_loss, args.assistant_only_loss)
    return Converter(ModelFiles(args.tokenizer, args.eos_token), Options(
        args.max_length, args.vocab_size, rule, args.chat_template,
        args.workers, columns_of(args), args.pairs, args.unpaired,
        args.allow_template_drops, tuple(args.row_format),
        args.excess_length_strategy, args.max_samples, args.min_length,
        args.drop_duplicates, args.drop_system_messages,
        args.packing_strategy))
