# SPDX-License-Identifier: MIT
"""The tokenizer of a model folder, for training: without truncation, padding
and dropout, with special tokens declared."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from functools import cached_property

from tokenizers import Encoding, decoders, processors

from .errors import DataError
from .model_files import ModelFiles
from .tokenizer_files import add_tokens, load_tokenizer


class TextTokenizer:
    """Converts text to ids with character offsets.

    Does not run the tokenizer's post-processor, because byte-level ones trim
    spaces off the offsets, and trimmed spaces would get no label. The ids that
    it adds around a text are determined once (affixes)."""

    def __init__(self, files: ModelFiles):
        self._tokenizer, self.path, defaults = load_tokenizer(files)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if getattr(self._tokenizer.model, "dropout", None) is not None:
            self._tokenizer.model.dropout = None
        self._post_processor = self._tokenizer.post_processor
        self._tokenizer.post_processor = None
        self._check_end(files.eos_token)
        self.special_tokens = files.special_tokens(
            self._tokenizer.id_to_token, defaults)
        self._add_special_tokens(files)
        if not self.path.endswith(".json"):
            self._post_processor = self._configured_processor(files.config)
        self.eos_token = self.special_tokens.get("eos_token", "")
        self.added_tokens = tuple(
            token.content for token in
            self._tokenizer.get_added_tokens_decoder().values())
        self._affixes: tuple[list[int], list[int]] | None = None

    def _check_end(self, token: str) -> None:
        if token and self._tokenizer.token_to_id(token) is None:
            raise DataError(f"--eos-token: '{token}' is not in the vocabulary "
                            f"of {self.path}", "use one of its tokens")

    def _add_special_tokens(self, files: ModelFiles) -> None:
        known = {token.content for token in
                 self._tokenizer.get_added_tokens_decoder().values()}
        named = [{"content": text, "special": True, "normalized": False}
                 for text in self.special_tokens.values()]
        add_tokens(self._tokenizer, [
            token for token in named + files.further_special_tokens()
            if token["content"] not in known])

    def _configured_processor(self, config: dict):
        """Returns the processor that tokenizer_config.json describes for plain
        text; a tokenizer.json has its own."""
        tokens = [self.special_tokens.get(name, "")
                  if config.get(f"add_{name}") else ""
                  for name in ("bos_token", "eos_token")]
        return processors.TemplateProcessing(
            single=f"{tokens[0]} $A {tokens[1]}".strip(), special_tokens=[
                (text, self._tokenizer.token_to_id(text))
                for text in tokens if text])

    def affixes(self, encoding: Encoding) -> tuple[list[int], list[int]]:
        """Returns the ids that the tokenizer adds before and after plain text,
        from `encoding` of any text with tokens."""
        if self._affixes is None:
            if self._post_processor is None:
                self._affixes = [], []
            else:
                whole = self._post_processor.process(encoding, None, True)
                begin = whole.special_tokens_mask.index(0)
                end = begin + len(encoding.ids)
                self._affixes = whole.ids[:begin], whole.ids[end:]
        return self._affixes

    def begin_ids(self) -> list[int]:
        """Returns the ids that the tokenizer adds before plain text."""
        return self.affixes(self.encode(["a"])[0])[0]

    def padding_id(self) -> int:
        """Returns the id of the pad token, or without one of the end token."""
        text = self.special_tokens.get("pad_token", self.eos_token)
        return self._tokenizer.token_to_id(text)

    def eos_id(self) -> int:
        if not self.eos_token:
            raise DataError(
                "no end-of-sequence token is named, but plain text needs it",
                "add \"eos_token\" to tokenizer_config.json",
                os.path.dirname(self.path) or ".")
        return self._tokenizer.token_to_id(self.eos_token)

    def description(self) -> dict:
        """Returns the tokenizer as a tokenizer.json has it, without the
        post-processor."""
        return json.loads(self._tokenizer.to_str())

    def token(self, number: int) -> str:
        return self._tokenizer.id_to_token(number)

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    @property
    def is_byte_level(self) -> bool:
        """Returns whether each character of a token stands for a byte."""
        return "ByteLevel" in repr(self._tokenizer.decoder
                                   or self._tokenizer.pre_tokenizer)

    def size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, texts: list[str]) -> list[Encoding]:
        """Encodes many texts at once, on all cores, without special tokens."""
        return self._tokenizer.encode_batch(texts, add_special_tokens=False)

    @cached_property
    def _special_ids(self) -> dict[int, str]:
        decoder = self._tokenizer.get_added_tokens_decoder()
        return {number: token.content for number, token in decoder.items()
                if token.special}

    def decode(self, ids: list[int], drops_special: bool = False,
               kept: Collection[str] = ()) -> str:
        """Returns the text, without special tokens if `drops_special`, except
        those in `kept`."""
        if drops_special and kept:
            special, drops_special = self._special_ids, False
            ids = [number for number in ids
                   if special.get(number, "") in ("", *kept)]
        if self._tokenizer.decoder is None:  # not loaded from tokenizer.json
            self._tokenizer.decoder = (
                decoders.ByteLevel()
                if "ByteLevel" in repr(self._tokenizer.pre_tokenizer)
                else decoders.Sequence([decoders.Replace("\u2581", " "),
                                        decoders.ByteFallback(),
                                        decoders.Fuse()]))
        return self._tokenizer.decode(ids, skip_special_tokens=drops_special)
