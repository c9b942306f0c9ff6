# SPDX-License-Identifier: MIT
"""Reads elements of a JSON array one by one, without holding the array in
memory. The array is the whole file, or "data" or "train" of an object."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator

from .errors import DataError
from .jsonl import beyond_limits

_BLOCK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
# Matches an object's text up to its array of rows. Only scalars may come first.
_ROWS_KEY = re.compile(
    rb'\s*\{\s*(?:"\w+"\s*:\s*(?:"[^"\\]*"|[\w.+-]+)\s*,\s*)*'
    rb'"(?:data|train)"\s*:\s*(?=\[)')
# An error within this many characters of the end may mean only that more of the
# element must be read.
_NEAR_THE_END = 16
_DECODER = json.JSONDecoder()


def json_list_place(head: bytes) -> int:
    """Returns the byte offset of the array of rows in an object that begins
    with `head`; 0 if `head` does not reach it."""
    found = _ROWS_KEY.match(head)
    return found.end() if found else 0


class _Text:
    """A window of the text: drops consumed text, reads more when needed."""

    def __init__(self, path: str, stream, limit: int):
        self.path, self.stream, self.limit = path, stream, limit
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text, self.at, self.ended = "", 0, False

    def more(self) -> bool:
        """Doubles the text in memory, so that long elements are parsed only a
        few times. Returns False at the end of the file."""
        if self.ended:
            return False
        self.text, self.at = self.text[self.at:], 0
        if len(self.text) > self.limit:
            raise DataError(f"a row of more than {self.limit >> 20} MiB",
                            "split it into several rows", self.path)
        raw = self.stream.read(max(_BLOCK, len(self.text)))
        self.ended = not raw
        self.text += self.decoder.decode(raw, self.ended)
        return not self.ended

    def next_sign(self) -> str:
        """Returns the next character that is no space, without consuming it;
        empty at the end of the file."""
        while True:
            self.at = _SPACE.match(self.text, self.at).end()
            if self.at < len(self.text) or not self.more():
                return self.text[self.at:self.at + 1]


def json_elements(path: str, stream, skipped: int,
                  limit: int) -> Iterator[tuple[object, int]]:
    """Yields each element of the array that begins after `skipped` bytes, and
    its length in characters."""
    stream.read(skipped)
    text = _Text(path, stream, limit)
    text.next_sign()
    text.at += 1
    number = 0
    while (sign := text.next_sign()) != "]":
        number += 1
        place = f"{path}: row {number}"
        if number > 1:
            if sign != ",":
                raise DataError(
                    "malformed JSON: expects ',' or ']' before this row",
                    "write an array of objects", place)
            text.at += 1
        yield _element(text, place)
    text.at += 1
    if not skipped and text.next_sign():
        raise DataError("malformed JSON: text follows the array",
                        "write one array of objects", path)


def _element(text: _Text, place: str) -> tuple[object, int]:
    text.next_sign()
    while True:
        try:
            value, end = _DECODER.raw_decode(text.text, text.at)
            if end < len(text.text) or not text.more():
                size, text.at = end - text.at, end
                return value, size
        except json.JSONDecodeError as error:
            is_cut = (error.msg.startswith("Unterminated string")
                      or error.pos + _NEAR_THE_END > len(text.text))
            if not is_cut or not text.more():
                raise DataError(f"malformed JSON: {error.msg}",
                                "write an array of objects", place) from None
        except (RecursionError, ValueError) as error:
            raise beyond_limits(error, "write an array of objects",
                                place) from None
