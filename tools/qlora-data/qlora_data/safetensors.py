# SPDX-License-Identifier: MIT
"""Writes a safetensors file of flat integer tensors, all or nothing.

The safetensors package (0.8) does not do it: the order of its metadata is
another one in every process, and a disk that is full at the end is no error.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sys
from array import array

from .errors import DataError

_DTYPES = {"i": "I32", "q": "I64"}


def header_bytes(tensors: dict[str, array], metadata: dict[str, str]) -> bytes:
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


def file_order(tensors: dict[str, array]) -> list[str]:
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def write_safetensors(path: str, tensors: dict[str, array],
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
                file.write(_little_endian(tensors[name]))
            # Else a power cut could leave the name with half the bytes.
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"cannot be written: {error.strerror} ({size_bytes} bytes are "
                "needed)", "free some space, or write to another folder",
                path) from None
        raise DataError(f"cannot be written: {error.strerror}",
                        "write to another folder", path) from None
    finally:
        try:
            os.unlink(temporary)
        except OSError:
            pass


def _little_endian(values: array) -> array:
    if sys.byteorder == "little":
        return values
    swapped = array(values.typecode, values)
    swapped.byteswap()
    return swapped
