# SPDX-License-Identifier: MIT
"""Writes a safetensors file of flat integer tensors, all or nothing. The tensors
lie in files until their sizes are known, which come first.

The safetensors package (0.8) does not do it: the order of its metadata is
another one in every process, and a disk that is full at the end is no error.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
import tempfile
from array import array

from .errors import DataError

_DTYPES = {"i": "I32", "q": "I64"}


class Spool:
    """Integers of an array's type in a file without a name, beside the file
    `output` that they are for."""

    def __init__(self, typecode: str, output: str):
        self.typecode, self.output = typecode, output
        self.itemsize = array(typecode).itemsize
        self._count = 0
        try:
            self._file = tempfile.TemporaryFile(
                dir=os.path.dirname(os.path.abspath(output)))
        except OSError as error:
            raise _unwritable(error, output, 0) from None

    def __len__(self) -> int:
        return self._count

    def extend(self, values: array) -> None:
        self._count += len(values)
        try:
            self._file.write(_little_endian(values))
        except OSError as error:
            raise _unwritable(error, self.output,
                              self._count * self.itemsize) from None

    def copy_to(self, file) -> None:
        """Once: its room on the disk is free then."""
        self._file.seek(0)
        shutil.copyfileobj(self._file, file, 1 << 20)
        self._file.close()


def header_bytes(tensors: dict[str, Spool], metadata: dict[str, str]) -> bytes:
    """Length and JSON header. Widest type first, then by name, so that each
    tensor is aligned; padded with spaces to a multiple of 8."""
    header: dict = {"__metadata__": metadata}
    begin = 0
    for name in file_order(tensors):
        values = tensors[name]
        end = begin + len(values) * values.itemsize
        header[name] = {"dtype": _DTYPES[values.typecode],
                        "shape": [len(values)], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def file_order(tensors: dict[str, Spool]) -> list[str]:
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def write_safetensors(path: str, tensors: dict[str, Spool],
                      metadata: dict[str, str]) -> None:
    """Writes a sibling file and renames it over `path`: a reader never sees
    half a file, and a failure leaves nothing behind."""
    folder, base = os.path.split(os.path.abspath(path))
    # Not named after this process: the folder may be seen by other machines.
    temporary = os.path.join(folder, f"{base}.part.{secrets.token_hex(4)}")
    header = header_bytes(tensors, metadata)
    size_bytes = len(header) + sum(
        len(values) * values.itemsize for values in tensors.values())
    try:
        with open(temporary, "xb") as file:
            file.write(header)
            for name in file_order(tensors):
                tensors[name].copy_to(file)
            # Else a power cut could leave the name with half the bytes.
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(error, path, size_bytes) from None
    finally:
        try:
            os.unlink(temporary)
        except OSError:
            pass


def _unwritable(error: OSError, path: str, size_bytes: int) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DataError(
            f"cannot be written: {error.strerror} ({size_bytes} bytes are "
            "needed)", "free some space, or write to another folder", path)
    return DataError(f"cannot be written: {error.strerror}",
                     "write to another folder", path)


def _little_endian(values: array) -> array:
    if sys.byteorder == "little":
        return values
    swapped = array(values.typecode, values)
    swapped.byteswap()
    return swapped
