# SPDX-License-Identifier: MIT
"""Hashes everything that the tokens of a conversion depend on. Calls with the
same key write the same file, so the key can name cached files."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import sys
from datetime import date

from .environment import PACKAGES
from .errors import unreadable
from .model_files import SHIPPED, ModelFiles
from .sources import data_files

_HERE = os.path.dirname(os.path.abspath(__file__))
_MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json",
                "tokenizer.model", "vocab.json", "merges.txt",
                "tokenizer_config.json", "special_tokens_map.json",
                "added_tokens.json", "chat_template.json")
_BLOCK = 1 << 20


class _Key:
    """Hashes parts, each with its length: ("ab", "c") and ("a", "bc") differ.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, *parts: object) -> None:
        for part in parts:
            text = str(part).encode("utf-8", "surrogateescape")
            self._hash.update(len(text).to_bytes(8, "little") + text)

    def add_file(self, path: str) -> None:
        self.add(path)
        try:
            with open(path, "rb") as file:
                self._hash.update(os.fstat(file.fileno()).st_size
                                  .to_bytes(8, "little"))
                while block := file.read(_BLOCK):
                    self._hash.update(block)
        except OSError as error:
            raise unreadable(path, error) from None

    def text(self) -> str:
        return self._hash.hexdigest()


def _own_sources() -> list[str]:
    return sorted(os.path.join(folder, name)
                  for folder, _, names in os.walk(_HERE) for name in names
                  if name.endswith((".py", ".jinja")))


def cache_key(args: argparse.Namespace) -> str:
    key = _Key()
    # Hash qlora-data's source text, because it has no version number.
    key.add(sys.version, *map(importlib.metadata.version, PACKAGES))
    for source in _own_sources():
        key.add_file(source)
    key.add(args.max_length, args.vocab_size, args.completion_only_loss,
            args.assistant_only_loss, args.chat_template, args.pairs,
            args.unpaired, args.allow_template_drops, args.row_format,
            args.excess_length_strategy, args.max_samples, args.min_length,
            args.drop_duplicates, args.drop_system_messages,
            args.packing_strategy, args.eos_token)
    # The key depends on the input's path, because warnings name the file.
    key.add(args.input, *args.column)
    for path in data_files(args.input):
        key.add_file(path)
    files = ModelFiles(args.tokenizer)
    for name in _MODEL_FILES:
        path = os.path.join(args.tokenizer, name)
        if os.path.exists(path):
            key.add_file(path)
    named = args.chat_template
    templates = files.chat_templates(None if named in SHIPPED else named)
    for name in sorted(templates):
        key.add(name, templates[name][0])
    # strftime_now writes the current date into a conversation.
    if any("strftime_now" in source for source, _ in templates.values()):
        key.add(date.today())
    return key.text()
