# SPDX-License-Identifier: MIT
"""Writes a safetensors file of flat integer tensors, completely or not at all,
and reads integer tensors. Values are collected in unnamed files, because the
header needs the number of all values.

The safetensors package (0.8) is not used: its metadata order differs between
processes, and it reports no error if the disk is full at the end.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import shutil
import sys
import tempfile
from array import array

from .errors import DataError, unreadable, unwritable

_DTYPES = {"i": "I32", "q": "I64"}


class Spool:
    """Integers of an array type in an unnamed file, in the folder of the file
    `output`."""

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
        """Copies the integers to `file`, and frees their disk space. Call this
        once."""
        self._file.seek(0)
        shutil.copyfileobj(self._file, file, 1 << 20)
        self._file.close()


def header_bytes(tensors: dict[str, Spool], metadata: dict[str, str]) -> bytes:
    """Returns the header: its length in 8 bytes, then its JSON. Orders tensors
    by element width, widest first, then by name, so that each is aligned. Pads
    the JSON with spaces to a multiple of 8 bytes."""
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
    """Writes a temporary file and renames it to `path`. Readers never see a
    partial file, and a failure leaves no file."""
    folder, base = os.path.split(os.path.abspath(path))
    # A random name: machines that share a folder may have equal process ids.
    temporary = os.path.join(folder, f"{base}.part.{secrets.token_hex(4)}")
    header = header_bytes(tensors, metadata)
    size_bytes = len(header) + sum(
        len(values) * values.itemsize for values in tensors.values())
    try:
        with open(temporary, "xb") as file:
            file.write(header)
            for name in file_order(tensors):
                tensors[name].copy_to(file)
            # Without fsync, a power failure could leave a partial file.
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
    return unwritable(path, error)


def read_integers(path: str) -> tuple[dict[str, tuple[list[int], memoryview]],
                                      dict[str, str]]:
    """Maps the file. Returns tensors as (shape, values), and the metadata."""
    try:
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8:begin]))
        metadata = header.pop("__metadata__", {})
        codes = {dtype: code for code, dtype in _DTYPES.items()}
        return {name: (tensor["shape"], data[begin:][slice(
                    *tensor["data_offsets"])].cast(codes[tensor["dtype"]]))
                for name, tensor in header.items()}, metadata
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is not a safetensors file of integers: {error!r}",
                        "write it again", path) from None


def _little_endian(values: array) -> array:
    if sys.byteorder == "little":
        return values
    swapped = array(values.typecode, values)
    swapped.byteswap()
    return swapped
