#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a gpt-oss folder whose experts are bf16, as transformers has them.

    decode_mxfp4.py FROM TO

Blocks of 32 values in [experts, out, in] share a power of two. They become
[experts, in, out] in bf16, which represents each value exactly.
"""

import json
import os
import shutil
import struct
import sys

import numpy as np

VALUES = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)


def decode(blocks, scales):
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(
        *scales.shape, 32)
    numbers = np.concatenate([VALUES, -VALUES])[codes]
    numbers = numbers * np.exp2(scales.astype(np.float32) - 127)[..., None]
    matrices = numbers.reshape(*scales.shape[:2], -1).swapaxes(1, 2)
    return (np.ascontiguousarray(matrices).view(np.uint32) >> 16).astype("<u2")


def main():
    source, target = sys.argv[1:]
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    with open(os.path.join(source, "model.safetensors"), "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header, body = json.loads(file.read(size)), file.read()
    header.pop("__metadata__", None)

    def raw(name):
        begin, end = header[name]["data_offsets"]
        return np.frombuffer(body[begin:end], np.uint8).reshape(
            header[name]["shape"])

    out, data = {}, b""
    for name, entry in header.items():
        if name.endswith("_scales"):
            continue
        dtype, shape = entry["dtype"], entry["shape"]
        begin, end = entry["data_offsets"]
        text = body[begin:end]
        if name.endswith("_blocks"):
            name = name[:-len("_blocks")]
            numbers = decode(raw(name + "_blocks"), raw(name + "_scales"))
            dtype, shape, text = "BF16", list(numbers.shape), numbers.tobytes()
        out[name] = {"dtype": dtype, "shape": shape,
                     "data_offsets": [len(data), len(data) + len(text)]}
        data += text
    text = json.dumps(out).encode()
    path = os.path.join(target, "model.safetensors")
    os.chmod(path, 0o644)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    path = os.path.join(target, "config.json")
    os.chmod(path, 0o644)
    with open(path) as file:
        config = json.load(file)
    config.pop("quantization_config")
    with open(path, "w") as file:
        json.dump(config, file, indent=2)


if __name__ == "__main__":
    main()
