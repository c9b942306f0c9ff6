# SPDX-License-Identifier: MIT
"""Files of results: a JSON object per line, {"index": 0, ...}, in order. A run
that was interrupted can continue them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from .errors import DataError, unreadable, unwritable


def earlier_results(path: str) -> Iterator[tuple[dict, int]]:
    """Yields the results that a file has already, and the bytes up to the end
    of each. An incomplete last line, of a run that was killed, does not count.
    A file that does not exist has none."""
    size = 0
    try:
        with open(path, "rb") as file:
            for index, line in enumerate(file):
                result = _result(line, index, path)
                if result is None:
                    return
                size += len(line)
                yield result, size
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreadable(path, error) from None


def _result(line: bytes, index: int, path: str) -> dict | None:
    """Returns a complete line as the result of row `index`, None for an
    incomplete one. Refuses any other file, which must not be changed."""
    begin = json.dumps({"index": index})[:-1].encode()
    try:
        if line.startswith(begin + b",") or begin.startswith(line):
            return json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        pass
    raise DataError(f"is not the result of row {index}, so answers cannot be "
                    "added", "name another --output", f"{path}:{index + 1}")


@contextlib.contextmanager
def opened(path: str | None, size: int) -> Iterator[BinaryIO]:
    """Opens the file at `size` bytes, and removes what follows. Without a path,
    yields standard output."""
    if not path:
        yield sys.stdout.buffer
        return
    try:
        file = open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb")
        if os.fstat(file.fileno()).st_size > size:
            file.truncate(size)
        file.seek(size)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield file
    finally:
        # Each result has been flushed, so only what cannot be written is left.
        with contextlib.suppress(OSError):
            file.close()


def write_result(file: BinaryIO, path: str | None, result: dict) -> None:
    # Cells of Parquet tables may have types that JSON lacks, such as dates.
    text = json.dumps(result, ensure_ascii=False, default=str) + "\n"
    try:
        # A lone surrogate becomes its escape, which JSON has too.
        file.write(text.encode("utf-8", "backslashreplace"))
        file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(path or "standard output", error) from None
