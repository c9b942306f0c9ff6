# SPDX-License-Identifier: MIT
"""Reads a line of JSONL as one object; errors name the line."""

from __future__ import annotations

import json
from .errors import DataError


def parse_line(raw: bytes, place: str) -> dict:
    """Returns one line as an object."""
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
    except (RecursionError, ValueError) as error:
        raise beyond_limits(error, "write one JSON object a line",
                            place) from None
    if not isinstance(row, dict):
        raise DataError(f"expects a JSON object, but got {kind(row)}",
                        "write one JSON object a line", place)
    return row


def beyond_limits(error: Exception, todo: str, place: str) -> DataError:
    """Returns the error for well-formed JSON that exceeds Python's limits."""
    if isinstance(error, RecursionError):
        return DataError("malformed JSON: nested too deeply", todo, place)
    # Python refuses integers with thousands of digits.
    return DataError(f"malformed JSON: {error}",
                     "write such a number as a string", place)


def kind(value: object) -> str:
    """Returns the JSON name of a value's type, for errors."""
    names = {dict: "an object", list: "a list", str: "a string",
             bool: "a boolean", int: "a number", float: "a number",
             type(None): "null"}
    # Cells of Parquet tables may have other types.
    return names.get(type(value), f"a value of type {type(value).__name__}")
