# SPDX-License-Identifier: MIT
"""Reads rows of files in batches: JSONL, JSON, CSV, TSV and Parquet, compressed
or not, one file or a folder of them.

The first bytes determine a file's kind, and its name only if they do not. No
file is held in memory: a row is at most `MAX_ROW_BYTES` long, a batch ends
after `BATCH_ROWS` rows or `_BATCH_BYTES` bytes, and Parquet is read by row
groups.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .environment import how_to_install
from .errors import DataError, unreadable
from .formats import check_is_text, head_of, separator_of
from .hub_datasets import cached_files
from .hub_reference import is_reference, parse_reference, parse_split
from .json_rows import json_elements, json_list_place
from .jsonl import kind, parse_line

MAX_ROW_BYTES = 64 << 20
BATCH_ROWS = 256
_BATCH_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
_COMPRESSED = ("", ".gz", ".zst", ".bz2", ".xz")
# Errors that libraries raise for damaged data. An OSError without an errno
# comes from a decompressor, one with an errno from the system.
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, csv.Error, OSError)


@dataclass
class SourceRow:
    """A row that is not parsed yet. `place` names it in errors."""
    place: str
    read: Callable[[], dict]
    size: int


@dataclass
class Source:
    """Files of a data set, and the range of their rows that is read."""
    files: list[str]
    first: int = 0  # counts the rows of all files
    end: int = sys.maxsize

    def limited(self, rows: int | None) -> Source:
        """Returns only the first `rows` rows; None: all."""
        if rows is None:
            return self
        return replace(self, end=min(self.end, self.first + rows))


def source_of(path: str, max_samples: int | None = None) -> Source:
    """Returns the rows of a file, a folder or a split of a data set on the
    hub, at most `max_samples`."""
    files = data_files(path)
    if not is_reference(path):
        return Source(files).limited(max_samples)
    split = parse_reference(path).split
    rows = parse_split(split)
    count = count_rows(files) if rows.needs_count else sys.maxsize
    first, end = rows.rows(count)
    if first >= end:
        raise DataError(f"the split '{split}' has no rows" + (
            f": the whole has {count}" if rows.needs_count else ""),
            "choose other rows of it", path)
    return Source(files, first, end).limited(max_samples)


def count_rows(files: list[str]) -> int:
    return sum(1 for path in files for _ in _rows_of(path))


def data_files(path: str) -> list[str]:
    """Returns `path` if it is a file, the files of a split on the hub, or the
    folder's data files, sorted by name, without hidden files."""
    if is_reference(path):
        return cached_files(parse_reference(path))
    if not os.path.isdir(path):
        return [path]
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise unreadable(path, error) from None
    endings = tuple(kind + packed for kind in _KINDS for packed in _COMPRESSED)
    files = [os.path.join(path, name) for name in names
             if name.endswith(endings) and not name.startswith(".")]
    files = [file for file in files if os.path.isfile(file)]
    if not files:
        raise DataError("the folder has no data",
                        "add files that end in .jsonl, .json, .csv, .tsv or "
                        ".parquet, or in these with .gz or .zst", path)
    return files


def total_bytes(files: list[str]) -> int:
    try:
        return sum(os.stat(file).st_size for file in files)
    except OSError as error:
        raise unreadable(error.filename, error) from None


def batches(source: Source) -> Iterator[tuple[list[SourceRow], int]]:
    """Yields (batch of rows, bytes read so far from all files)."""
    before, number = 0, 0  # number: index of the next row in all files
    for path in source.files:
        rows, size = [], 0
        for row, done in _rows_of(path):
            if number >= source.end:
                break
            number += 1
            if number <= source.first:
                continue
            rows.append(row)
            size += row.size
            if len(rows) == BATCH_ROWS or size >= _BATCH_BYTES:
                yield rows, before + done
                rows, size = [], 0
        before += os.path.getsize(path)
        if rows:
            yield rows, before
        if number >= source.end:
            return


def _rows_of(path: str) -> Iterator[tuple[SourceRow, int]]:
    try:
        with open(path, "rb") as file:
            head = file.read(4)
            file.seek(0)
            if head == b"PAR1":
                yield from _parquet_rows(path, file)
                return
            with _decompressed(path, file, head) as stream:
                for row in _text_rows(path, stream):
                    yield row, file.tell()
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 (byte 0x{error.object[error.start]:02x})",
                        "save the file as UTF-8", path) from None
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            raise unreadable(path, error) from None
        raise DataError(f"is damaged: {error}", "write or download it again",
                        path) from None


def _decompressed(path: str, file, head: bytes):
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(gzip.GzipFile(fileobj=file))
    if head.startswith(b"BZh"):
        return io.BufferedReader(bz2.BZ2File(file))
    if head.startswith(b"\xfd7zX"):
        return io.BufferedReader(lzma.LZMAFile(file))
    if head == b"\x28\xb5\x2f\xfd":
        pyarrow = _package("pyarrow", "zstd", path)
        return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))
    return file


def _package(name: str, what: str, path: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise DataError(f"{what} needs the Python package pyarrow",
                        f"run: {how_to_install('pyarrow')}, or "
                        "give the rows as .jsonl or .jsonl.gz", path) from None


def _text_rows(path: str, stream) -> Iterator[SourceRow]:
    head = head_of(stream)
    check_is_text(path, head)
    stem = path
    for packed in _COMPRESSED[1:]:
        stem = stem.removesuffix(packed)
    first = head.removeprefix(_BOM).lstrip()
    if separator := separator_of(stem, first):
        return _table_rows(path, stream, separator)
    if first[:1] == b"[":
        return _json_rows(path, stream, 0)
    if stem.endswith(".json"):
        if place := json_list_place(head):
            return _json_rows(path, stream, place)
    return _line_rows(path, stream)


def _lines(path: str, stream) -> Iterator[tuple[int, bytes]]:
    """Yields (line number, line). Splits at LF and CR LF only, because a string
    may contain other line separators (U+2028)."""
    for number in range(1, sys.maxsize):
        raw = stream.readline(MAX_ROW_BYTES + 1)
        if not raw:
            return
        if len(raw) > MAX_ROW_BYTES:
            raise too_long(f"{path}:{number}")
        yield number, raw.removeprefix(_BOM) if number == 1 else raw


def too_long(place: str) -> DataError:
    return DataError(f"a row of more than {MAX_ROW_BYTES >> 20} MiB",
                     "split it into several rows", place)


def _line_rows(path: str, stream) -> Iterator[SourceRow]:
    for number, raw in _lines(path, stream):
        if raw.strip():
            place = f"{path}:{number}"
            yield SourceRow(place, lambda raw=raw, place=place:
                            parse_line(raw, place), len(raw))


def _given(row: object, place: str) -> dict:
    if not isinstance(row, dict):
        raise DataError(f"expects a JSON object, but got {kind(row)}",
                        "write an array of objects", place)
    return row


def _json_rows(path: str, stream, skipped: int) -> Iterator[SourceRow]:
    elements = json_elements(path, stream, skipped, MAX_ROW_BYTES)
    for number, (row, size) in enumerate(elements, start=1):
        place = f"{path}: row {number}"
        yield SourceRow(place, lambda row=row, place=place:
                        _given(row, place), size)


def _table_rows(path: str, stream, separator: str) -> Iterator[SourceRow]:
    csv.field_size_limit(MAX_ROW_BYTES)
    lines = (raw.decode("utf-8") for _, raw in _lines(path, stream))
    reader = csv.reader(lines, delimiter=separator, strict=True)
    columns = next(reader, [])
    if not all(columns) or len(set(columns)) < len(columns):
        raise DataError("the first line does not name the columns: a name is "
                        "empty or repeated",
                        "write their names there, such as prompt,completion",
                        f"{path}:1")
    for number, cells in enumerate((row for row in reader if row), start=1):
        if len(cells) != len(columns):
            raise DataError(f"has {len(cells)} cells, but the first line "
                            f"names {len(columns)} columns",
                            "quote text with separators or line breaks",
                            f"{path}: row {number}")
        row = dict(zip(columns, cells))
        yield SourceRow(f"{path}: row {number}", lambda row=row: row,
                        sum(map(len, cells)))


def _without_nulls(value: object) -> object:
    """Removes null fields of objects, at any depth. A table has one schema for
    all rows, so each object has all fields, many of them null. Maps become
    objects."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items()
                if item is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            return _without_nulls(dict(value))  # a map of Arrow
        return [_without_nulls(item) for item in value]
    return value


def _parquet_rows(path: str, file) -> Iterator[tuple[SourceRow, int]]:
    _package("pyarrow", "Parquet", path)
    parquet = importlib.import_module("pyarrow.parquet")
    error_types = (importlib.import_module("pyarrow").ArrowException, OSError)
    number, size = 0, os.path.getsize(path)
    try:
        table = parquet.ParquetFile(file)
        rows = max(table.metadata.num_rows, 1)
        for batch in table.iter_batches(BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield SourceRow(f"{path}: row {number}",
                                lambda row=row: _without_nulls(row),
                                size // rows), size * number // rows
    except error_types as error:
        raise DataError(f"is damaged: {error}", "write or download it again",
                        path) from None
