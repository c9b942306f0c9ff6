# SPDX-License-Identifier: MIT
"""Recognises files that cannot be read here, and names a command that converts
them to JSONL."""

from __future__ import annotations

import os
import re
import shlex
import sys

from .errors import DataError

_HEAD_BYTES = 4096

_UTF16 = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"),
          (b"{\x00", "UTF-16LE"), (b"\x00{", "UTF-16BE"))
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")  # a file, a stream
# A line of column names. No space follows a separator, unlike in a sentence.
_COLUMNS = re.compile(r'"?\w[\w -]*"?([,\t])"?\w[\w -]*"?(\1"?\w[\w -]*"?)*')

_DATASETS = ("import datasets, sys; datasets.load_dataset('arrow', "
             "data_files=sys.argv[1])['train'].to_json(sys.argv[2])")
_PANDAS = ("import pandas, sys; pandas.read_excel(sys.argv[1]).to_json("
           "sys.argv[2], orient='records', lines=True)")

class _Commands:
    """Commands for one file, quoted for a shell."""

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

    def python(self, packages: str, code: str) -> str:
        """Returns a command that installs `packages` and runs `code`. If this
        Python is not in a virtual environment, the command makes one first,
        because Debian's pip refuses to install elsewhere."""
        python = shlex.quote(sys.executable)
        install = f"{python} -m pip install {packages}"
        if sys.prefix == sys.base_prefix:
            python = "tables/bin/python"
            install = ("python3 -m venv tables && tables/bin/pip install "
                       f"{packages}")
        return f'{install} && {python} -c "{code}" {self.input} {self.output}'


def _recognised(path: str, head: bytes) -> tuple[str, str] | None:
    """Returns the file's format and the command that converts the file to
    JSONL, or None if qlora-data can read the file."""
    commands = _Commands(path)
    if head.startswith(_ARROW):
        return "is an Arrow file", commands.python("datasets", _DATASETS)
    for magic, name in _UTF16:
        if head.startswith(magic):
            return "is UTF-16", commands.filter(f"iconv -f {name} -t UTF-8")
    if head.startswith(b"PK\x03\x04"):
        if path.endswith(".xlsx") or b"[Content_Types].xml" in head:
            return "is an Excel workbook", commands.python("pandas openpyxl",
                                                           _PANDAS)
        return ("is a zip archive",
                f"unzip -p {commands.input} > {commands.output}")
    return None


def separator_of(name: str, first: bytes) -> str:
    """Returns the separator of a table that begins with `first`; empty if it is
    not a table."""
    line = first.split(b"\n")[0].decode("utf-8", "replace").strip()
    columns = _COLUMNS.fullmatch(line)
    extension = os.path.splitext(name)[1]
    if first[:1] in (b"{", b"[") or not (columns
                                         or extension in (".csv", ".tsv")):
        return ""
    is_tsv = extension == ".tsv" or columns and columns[1] == "\t"
    return "\t" if is_tsv else ","


def head_of(stream) -> bytes:
    """Returns the first bytes of a stream without consuming them."""
    return stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]


def check_is_text(path: str, head: bytes) -> None:
    """Refuses a file that cannot be read, by its first bytes `head`."""
    found = _recognised(path, head)
    if found:
        what, command = found
        raise DataError(f"{what}, which is not supported",
                        f"convert it to JSONL: {command}", path)
