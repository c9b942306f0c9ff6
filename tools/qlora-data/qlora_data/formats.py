# SPDX-License-Identifier: MIT
"""Recognises files that are not JSONL, and names the command that makes it
of them."""

from __future__ import annotations

import os
import re
import shlex
import sys

from .errors import DataError

_HEAD_BYTES = 4096

_COMPRESSED = ((b"\x1f\x8b", "gzip", "gzip -dc"),
               (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
               (b"BZh", "bzip2", "bzip2 -dc"),
               (b"\xfd7zXZ\x00", "xz", "xz -dc"))
_UTF16 = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"),
          (b"{\x00", "UTF-16LE"), (b"\x00{", "UTF-16BE"))
_TABLES = ((b"PAR1", "a Parquet file", "parquet"),
           (b"ARROW1", "an Arrow file", "arrow"),
           (b"\xff\xff\xff\xff", "an Arrow file", "arrow"))
# Names of columns, without the space that follows a comma in a sentence.
_COLUMNS = re.compile(r'"?\w[\w -]*"?([,\t])"?\w[\w -]*"?(\1"?\w[\w -]*"?)*')

_PANDAS = ("import pandas, sys; pandas.read_excel(sys.argv[1]).to_json("
           "sys.argv[2], orient='records', lines=True)")
_CSV = ("import csv, json, sys; csv.field_size_limit(sys.maxsize); "
        "[print(json.dumps(row)) for row in csv.DictReader("
        "open(sys.argv[1], encoding='utf-8-sig', newline=''){})]")
_ARRAY = ("import json, sys; [print(json.dumps(row)) for row in "
          "json.load(open(sys.argv[1], encoding='utf-8-sig'))]")


class _Commands:
    """The commands for one file, quoted for a shell."""

    def __init__(self, path: str):
        stem, _ = os.path.splitext(path)
        if stem.endswith((".jsonl", ".json")):
            stem, _ = os.path.splitext(stem)
        output = stem + ".jsonl"
        if os.path.exists(output):
            output = stem + ".rows.jsonl"
        self.input, self.output = shlex.quote(path), shlex.quote(output)

    def filter(self, command: str) -> str:
        return f"{command} < {self.input} > {self.output}"

    def script(self, code: str) -> str:
        return f'python3 -c "{code}" {self.input} > {self.output}'

    def table(self, reader: str) -> str:
        code = (f"import datasets, sys; datasets.load_dataset('{reader}', "
                "data_files=sys.argv[1])['train'].to_json(sys.argv[2])")
        return self._with("datasets", code)

    def workbook(self) -> str:
        return self._with("pandas openpyxl", _PANDAS)

    def _with(self, packages: str, code: str) -> str:
        """Debian lets pip write into environments only."""
        python = shlex.quote(sys.executable)
        install = f"{python} -m pip install {packages}"
        if sys.prefix == sys.base_prefix:
            python = "tables/bin/python"
            install = ("python3 -m venv tables && tables/bin/pip install "
                       f"{packages}")
        return f'{install} && {python} -c "{code}" {self.input} {self.output}'


def _recognised(path: str, head: bytes) -> tuple[str, str] | None:
    """What the file is, and the command for it."""
    commands = _Commands(path)
    for magic, name, command in _COMPRESSED:
        if head.startswith(magic):
            return f"is compressed with {name}", commands.filter(command)
    for magic, name, reader in _TABLES:
        if head.startswith(magic):
            return f"is {name}", \
                commands.table(reader)
    for magic, name in _UTF16:
        if head.startswith(magic):
            return "is UTF-16", commands.filter(f"iconv -f {name} -t UTF-8")
    if head.startswith(b"PK\x03\x04"):
        if path.endswith(".xlsx") or b"[Content_Types].xml" in head:
            return "is an Excel workbook", \
                commands.workbook()
        return "is a zip archive", f"unzip -p {commands.input} > " \
            f"{commands.output}"
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if first.startswith(b"["):
        return "is one JSON array", commands.script(_ARRAY)
    return _separated(path, first, commands)


def _separated(path: str, first: bytes,
               commands: _Commands) -> tuple[str, str] | None:
    line = first.split(b"\n")[0].decode("utf-8", "replace").strip()
    columns = _COLUMNS.fullmatch(line)
    extension = os.path.splitext(path)[1]
    if first[:1] == b"{" or not (columns or extension in (".csv", ".tsv")):
        return None
    if extension == ".tsv" or columns and columns[1] == "\t":
        return "is TSV", commands.script(_CSV.format(", delimiter='\\t'"))
    return "is CSV", commands.script(_CSV.format(""))


def check_is_jsonl(path: str, head: bytes) -> None:
    """Refuses a file, of which `head` is the beginning, that is something
    else by its first bytes."""
    found = _recognised(path, head[:_HEAD_BYTES])
    if found:
        what, command = found
        raise DataError(f"{what}, not JSONL",
                        f"turn it into JSONL: {command}", path)
