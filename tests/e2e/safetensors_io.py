# SPDX-License-Identifier: MIT

"""Reads and writes safetensors for the end-to-end tests, with numpy only."""

import json
import math
import struct

import numpy as np

E4M3 = np.dtype([("e4m3", np.uint8)])  # FP8 as its codes
DTYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I8": np.int8,
          "I64": np.int64, "U8": np.uint8, "BF16": np.uint16, "F8_E4M3": E4M3}


def load(path):
    """Returns every tensor of the file by name; bf16 as f32."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + size + begin:8 + size + end],
                            DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = raw.reshape(entry["shape"])
    return tensors


def save(path, tensors, metadata=None):
    """Writes arrays with types of DTYPES; uint16 holds the bits of bf16."""
    names = {np.dtype(type_): name for name, type_ in DTYPES.items()}
    header = {"__metadata__": metadata} if metadata else {}
    blobs, offset = [], 0
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": names[array.dtype],
                        "shape": list(array.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def save_sparse(path, shapes):
    """Writes a file of bf16 tensors that takes no disk space: a header, and a
    hole that reads as zeros."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
