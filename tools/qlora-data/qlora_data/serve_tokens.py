# SPDX-License-Identifier: MIT
"""Text and bytes of single tokens, for log-probabilities."""

from __future__ import annotations

import re

from .tokenizer import TextTokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """Returns the bytes by the characters that byte-level tokenizers write:
    printable characters of Latin-1 are themselves, and others follow 255."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {**{chr(byte): byte for byte in kept},
            **{chr(256 + place): byte for place, byte in enumerate(others)}}


class TokenTexts:
    def __init__(self, tokenizer: TextTokenizer):
        self._tokenizer = tokenizer
        self._alphabet = (_byte_level_alphabet() if tokenizer.is_byte_level
                          else {})
        self._bytes: dict[int, bytes] = {}

    def is_special(self, token: int) -> bool:
        """Returns whether the text of answers lacks the token."""
        return not self._tokenizer.decode([token], drops_special=True)\
            and bool(self._tokenizer.decode([token]))

    def bytes(self, token: int) -> bytes:
        """Returns the token's bytes; empty for an id without a token."""
        if token not in self._bytes:
            self._bytes[token] = self._bytes_of(token)
        return self._bytes[token]

    def text(self, token: int) -> str:
        """Returns the token's text; for a part of a character its bytes, as
        OpenAI's API does: bytes:\\xe6\\x97."""
        raw = self.bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _bytes_of(self, token: int) -> bytes:
        text = self._tokenizer.token(token)
        if text is None:
            return b""
        if text in self._tokenizer.added_tokens:
            return text.encode()
        if self._alphabet:
            return b"".join(
                bytes((self._alphabet[sign],)) if sign in self._alphabet
                else sign.encode() for sign in text)
        if byte := _BYTE.fullmatch(text):
            return bytes((int(byte[1], 16),))
        return text.replace("\u2581", " ").encode()
