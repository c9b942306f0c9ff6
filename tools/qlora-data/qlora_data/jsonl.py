# SPDX-License-Identifier: MIT
"""Reads a JSONL file: one object a line, every mistake with its line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .errors import DataError, unreadable
from .formats import check_is_jsonl

_BOM = b"\xef\xbb\xbf"


def parse_line(raw: bytes, place: str) -> dict:
    """One line as an object."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"not UTF-8 (byte 0x{raw[error.start]:02x} at byte "
            f"{error.start + 1} of the line)",
            "save the file as UTF-8", place) from None
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"malformed JSON: {error.msg} at column {error.colno}",
            "write one JSON object a line", place) from None
    except RecursionError:
        raise DataError("malformed JSON: nested too deeply",
                        "write one JSON object a line", place) from None
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"malformed JSON: {error}",
                        "write such a number as a string", place) from None
    if not isinstance(row, dict):
        raise DataError(f"expects a JSON object, but got {kind(row)}",
                        "write one JSON object a line", place)
    return row


def kind(value: object) -> str:
    """The JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "a string",
             bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def read_lines(path: str, count: int) -> Iterator[
        tuple[list[tuple[int, bytes]], int]]:
    """Yields up to `count` (line number, line) at a time, and how many bytes
    of the file were read by then; blank lines are skipped. Lines end with LF
    or CR LF only, so that a U+2028 inside a string stays inside it."""
    lines, done = [], 0
    try:
        with open(path, "rb") as file:
            check_is_jsonl(path, file.peek())
            for number, raw in enumerate(file, start=1):
                done += len(raw)
                if number == 1 and raw.startswith(_BOM):
                    raw = raw[len(_BOM):]
                if raw.strip():
                    lines.append((number, raw))
                if len(lines) == count:
                    yield lines, done
                    lines = []
    except OSError as error:
        raise unreadable(path, error) from None
    if lines:
        yield lines, done
