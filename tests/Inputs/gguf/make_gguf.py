#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""make_gguf.py [LIBGGML]: what the Python package gguf makes, for the tests.

Writes, next to itself:
  small.gguf           a file with values of all types that keys can have
  blocks.safetensors   for each type T: `T.blocks`, random blocks, and
                       `T.values`, the package's values of them; `sample`, rows
                       to quantize, and for each type `T.errors`, the root mean
                       square error of each row after llama.cpp's quantizer
Versions are in the metadata. The K types have no quantizer in the package.
LIBGGML is the path of llama-cpp-python's libggml-base.so, whose version the
environment has; without it, `blocks.safetensors` keeps their errors.
"""

import ctypes
import importlib.metadata
import os
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = ("F16", "BF16", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
SCALES = {"Q4_0": (0,), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
          "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
BLOCKS, COLUMNS, ROWS_OF_A_KIND = 16, 512, 6


def random_blocks(name, random):
    values, size = gguf.GGML_QUANT_SIZES[Type[name]]
    blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    if name in ("F16", "BF16"):  # small enough for all values to be finite
        return (random.standard_normal((BLOCKS, 32)) * 3).astype(
            np.float16 if name == "F16" else np.float32)
    for offset in SCALES[name]:
        scale = random.standard_normal(BLOCKS) * 10.0 ** random.integers(
            -7, 4, BLOCKS)
        blocks[:, offset:offset + 2] = scale.astype(np.float16).view(
            np.uint8).reshape(BLOCKS, 2)
    return blocks


def sample(random):
    """Rows of several distributions: weights of models are near the first."""
    shape = (ROWS_OF_A_KIND, COLUMNS)
    spikes = random.standard_normal(shape) * 0.01
    spikes[:, ::97] *= 40
    return np.concatenate([
        random.standard_normal(shape) * 0.02,
        random.standard_t(3, shape) * 0.02,
        random.uniform(-1, 1, shape),
        random.standard_normal(shape) * 0.1 + 0.2,
        random.standard_normal(shape) * 1e-3,
        spikes]).astype(np.float32)


def llama_quantized(library, name, rows):
    values, size = gguf.GGML_QUANT_SIZES[Type[name]]
    out = np.empty((len(rows), COLUMNS // values * size), np.uint8)
    rows = np.ascontiguousarray(rows)
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
                         ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
                         ctypes.c_void_p)
    quantize(Type[name].value, rows.ctypes.data, out.ctypes.data, 0, len(rows),
             COLUMNS, None)
    return out


def row_errors(name, rows, library):
    quantized = (llama_quantized(library, name, rows) if library
                 else gguf.quants.quantize(rows, Type[name]))
    values = gguf.quants.dequantize(quantized, Type[name])
    return np.sqrt(((values - rows) ** 2).mean(axis=1)).astype(np.float32)


def write_blocks(path, library):
    random = np.random.default_rng(43)
    tensors = {}
    for name in NAMES:
        blocks = random_blocks(name, random)
        if name == "BF16":
            blocks = gguf.quants.quantize(blocks, Type.BF16)
        tensors[f"{name}.blocks"] = np.ascontiguousarray(blocks).view(np.uint8)
        tensors[f"{name}.values"] = np.ascontiguousarray(
            gguf.quants.dequantize(blocks, Type[name]).astype(np.float32))
    rows = tensors["sample"] = sample(random)
    before = load_file(path) if os.path.exists(path) else {}
    versions = {"gguf": importlib.metadata.version("gguf")}
    if library:
        versions["llama-cpp-python"] = importlib.metadata.version(
            "llama-cpp-python")
    for name in NAMES[2:]:
        if name.endswith("_K") and not library:
            if f"{name}.errors" in before:
                tensors[f"{name}.errors"] = before[f"{name}.errors"]
            continue
        tensors[f"{name}.errors"] = row_errors(name, rows, library)
    save_file(tensors, path, metadata=versions)


def write_small(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.uint32", 7)
    writer.add_int32("a.int32", -7)
    writer.add_float32("a.float32", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_uint64("a.uint64", 1 << 40)
    writer.add_string("a.string", "grüße")
    writer.add_array("an.array.of.int32", [1, -2, 3])
    writer.add_array("an.array.of.float32", [0.25, -1.5])
    writer.add_array("an.array.of.bool", [True, False, True])
    writer.add_array("an.array.of.string", ["a", "", "ü"])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.arange(5, dtype=np.float16))
    rows = np.arange(-32, 32, dtype=np.float32).reshape(2, 32) * 2
    writer.add_tensor("third", gguf.quants.quantize(rows, Type.Q8_0),
                      raw_dtype=Type.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(library=None):
    if library:
        library = ctypes.CDLL(library)
    write_small(os.path.join(HERE, "small.gguf"))
    write_blocks(os.path.join(HERE, "blocks.safetensors"), library)


if __name__ == "__main__":
    main(*sys.argv[1:])
