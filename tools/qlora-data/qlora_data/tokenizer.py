# SPDX-License-Identifier: MIT
"""The tokenizer of a model folder, set up for training: no truncation or
padding, no dropout, special tokens known as such."""

from __future__ import annotations

import os

from tokenizers import AddedToken, Encoding, Tokenizer

from .errors import DataError
from .model_files import ModelFiles

_TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


class TextTokenizer:
    """Text to ids with character offsets.

    The post-processor is taken off the tokenizer: byte-level ones trim the
    spaces off the offsets, which would unlabel them. What it adds around a
    text is asked of it once, from the first text that has tokens."""

    def __init__(self, files: ModelFiles):
        self.path = files.tokenizer_path()
        try:
            self._tokenizer = Tokenizer.from_file(self.path)
        except Exception as error:  # the library raises bare Exception
            raise DataError(f"not a tokenizer that can be read: {error}",
                            "copy tokenizer.json again from the model",
                            self.path) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if getattr(self._tokenizer.model, "dropout", None) is not None:
            self._tokenizer.model.dropout = None
        self._post_processor = self._tokenizer.post_processor
        self._tokenizer.post_processor = None
        self.special_tokens = files.special_tokens(self._tokenizer.id_to_token)
        self._add_tokens(files)
        self.eos_token = self.special_tokens.get("eos_token", "")
        self.added_tokens = tuple(
            token.content for token in
            self._tokenizer.get_added_tokens_decoder().values())
        self._affixes: tuple[list[int], list[int]] | None = None

    def _add_tokens(self, files: ModelFiles) -> None:
        """Tokens the folder's other files name but tokenizer.json does not
        hold as added tokens, in the order of their ids."""
        known = {token.content for token in
                 self._tokenizer.get_added_tokens_decoder().values()}
        for number, token in files.declared_tokens():
            if token["content"] in known:
                continue
            flags = {flag: bool(token[flag]) for flag in _TOKEN_FLAGS
                     if flag in token}
            self._tokenizer.add_tokens([AddedToken(token["content"], **flags)])
            known.add(token["content"])
            got = self._tokenizer.token_to_id(token["content"])
            if got != number:
                raise DataError(
                    f"'added_tokens_decoder' gives '{token['content']}' the id"
                    f" {number}, but in tokenizer.json it would be {got}",
                    "save the tokenizer again with transformers",
                    files.config_path)
        named = [AddedToken(text, special=True, normalized=False)
                 for text in self.special_tokens.values() if text not in known]
        if named:
            self._tokenizer.add_special_tokens(named)

    def affixes(self, encoding: Encoding) -> tuple[list[int], list[int]]:
        """The ids the tokenizer puts before and after a plain text, read off
        `encoding`, which is of any text that has tokens."""
        if self._affixes is None:
            if self._post_processor is None:
                self._affixes = [], []
            else:
                whole = self._post_processor.process(encoding, None, True)
                begin = whole.special_tokens_mask.index(0)
                end = begin + len(encoding.ids)
                self._affixes = whole.ids[:begin], whole.ids[end:]
        return self._affixes

    def eos_id(self) -> int:
        if not self.eos_token:
            raise DataError(
                "no end-of-sequence token is named, and plain text needs one",
                "add \"eos_token\" to tokenizer_config.json",
                os.path.dirname(self.path) or ".")
        return self._tokenizer.token_to_id(self.eos_token)

    def token(self, number: int) -> str:
        return self._tokenizer.id_to_token(number)

    def encode(self, texts: list[str]) -> list[Encoding]:
        """Many texts at once, on all cores; no special tokens are added."""
        return self._tokenizer.encode_batch(texts, add_special_tokens=False)
