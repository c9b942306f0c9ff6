# SPDX-License-Identifier: MIT

"""How files store the linears of the covering array's models: a row of FORMATS
each, and numbers that are the same wherever they are drawn. Of stored formats
the codes are drawn, and what they stand for is computed here.
"""

import json
import os
import zlib

import numpy as np

import safetensors_io

HERE = os.path.dirname(os.path.abspath(__file__))
STORED_EXAMPLE = os.path.join(HERE, "..", "Inputs", "goldens",
                              "prequantized-bnb", "model", "model.safetensors")


def bits(seed, name, count):
    """Integers of 64 bits; Philox's own stream, which numpy never changes."""
    key = [seed, zlib.crc32(name.encode())]
    return np.random.Philox(key=np.array(key, np.uint64)).random_raw(count)


def draw(seed, name, shape, deviation=1.0, mean=0.0):
    """Uniform, as float32."""
    unit = (bits(seed, name, int(np.prod(shape))) >> np.uint64(40)).astype(
        np.float32) * np.float32(2.0 ** -23) - np.float32(1)
    return (unit * np.float32(deviation * 3 ** 0.5)
            + np.float32(mean)).reshape(shape)


def bnb_tables():
    """bitsandbytes' NF4 code book and its map of nested scales."""
    tensors = safetensors_io.load(STORED_EXAMPLE)
    first = next(n for n in tensors if n.endswith(".nested_quant_map"))
    name = first[:-len(".nested_quant_map")]
    return tensors[f"{name}.quant_map"], tensors[first]


def scale_indices(shape, block):
    """Which scale each element has: bitsandbytes' kernel for AVX-512 begins
    with each row where its columns are multiples of 16 and not of the block
    (runtime/Kernels/Math/Stored.h)."""
    columns, element = shape[1], np.arange(int(np.prod(shape)))
    if columns % block == 0 or columns % 16 or block >= 2048:
        return element // block
    return (element // columns * (columns // block)
            + element % columns // block)


def stored_bnb4(kind, nested):
    def store(seed, name, shape):
        nf4, map_ = bnb_tables()
        positive = np.array([0, .0625, 8, 12, 4, 6, 2, 3], np.float32) / 12
        book = nf4 if kind == "nf4" else np.concatenate([positive, -positive])
        count, block = int(np.prod(shape)), 64
        blocks = -(-count // block)
        packed = bits(seed, name, -(-count // 2)).astype(np.uint8)
        state = {"quant_type": kind, "blocksize": block, "dtype": "float32",
                 "shape": list(shape)}
        scale = 1.7 / shape[1] ** 0.5
        if nested:
            offset = np.float32(scale)
            codes = bits(seed, name + ".absmax", blocks).astype(np.uint8)
            outer = draw(seed, name + ".nested", (-(-blocks // 256),),
                         0.1 * scale, 0.4 * scale)
            absmax = map_[codes] * outer[np.arange(blocks) // 256] + offset
            parts = {"absmax": codes, "nested_absmax": outer,
                     "nested_quant_map": map_}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32",
                      "nested_offset": float(offset)}
        else:
            absmax = draw(seed, name + ".absmax", (blocks,), 0.3 * scale,
                          scale)
            parts = {"absmax": absmax}
        parts["quant_map"] = book
        parts[f"quant_state.bitsandbytes__{kind}"] = np.frombuffer(
            json.dumps(state).encode(), np.uint8)
        codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[:count]
        values = book[codes] * absmax[scale_indices(shape, block)]
        return ({name: packed.reshape(-1, 1),
                 **{f"{name}.{part}": value for part, value in parts.items()}},
                values.reshape(shape))
    return store


def stored_int8(seed, name, shape):
    module = name[:-len(".weight")]
    codes = bits(seed, name, int(np.prod(shape))).astype(np.int8)
    codes = np.maximum(codes, -127).reshape(shape)
    scales = draw(seed, name + ".SCB", shape[:1], 0.2 / shape[1] ** 0.5,
                  1.7 / shape[1] ** 0.5)
    values = codes.astype(np.float32) * (scales * np.float32(1 / 127))[:, None]
    return {name: codes, f"{module}.SCB": scales,
            f"{module}.weight_format": np.zeros((), np.uint8)}, values


def stored_mxfp4(seed, name, shape):
    """Of [experts, in, out], which is stored as [experts, out, in]."""
    count, inputs, outputs = shape
    grid = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
    blocks = bits(seed, name, int(np.prod(shape)) // 2).astype(
        np.uint8).reshape(count, outputs, inputs // 32, 16)
    scales = (bits(seed, name + ".scales", blocks.size // 16)
              % np.uint64(2)).astype(np.uint8).reshape(blocks.shape[:3])
    scales += np.uint8(127 - int(np.log2(2.5 * inputs ** 0.5) + 1))
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(
        *scales.shape, 32)
    values = np.concatenate([grid, -grid])[codes] * np.exp2(
        scales.astype(np.float32) - 127)[..., None]
    return ({f"{name}_blocks": blocks, f"{name}_scales": scales},
            np.ascontiguousarray(values.reshape(count, outputs, inputs)
                                 .swapaxes(1, 2)))


class Format:
    """How files are stored: `dtype` of what is plain, `store` of the weights of
    `role`, the `method` config.json names; or `options` of quantising on
    load."""

    def __init__(self, dtype, options=(), store=None, role="linear",
                 method=()):
        self.dtype, self.options = dtype, dict(options)
        self.store, self.role, self.method = store, role, dict(method)

    def is_plain(self):
        return not self.options and not self.store


def bnb(**more):
    return {"quant_method": "bitsandbytes",
            "llm_int8_skip_modules": ["lm_head"], **more}


FORMATS = {
    "f32": Format("float32"),
    "bf16": Format("bfloat16"),
    "f16": Format("float16"),
    "nf4": Format("bfloat16", {"load_in_4bit": True,
                               "bnb_4bit_blocksize": 128}),
    "nf4-double": Format("float16", {"load_in_4bit": True,
                                     "bnb_4bit_use_double_quant": True}),
    "nf4-experts": Format("bfloat16", {"load_in_4bit": True,
                                       "bnb_4bit_use_double_quant": True,
                                       "quantize_moe_experts": True}),
    "int8": Format("bfloat16", {"load_in_8bit": True}),
    "bnb-nf4": Format("bfloat16", store=stored_bnb4("nf4", True), method=bnb(
        load_in_4bit=True, bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True)),
    "bnb-fp4": Format("float16", store=stored_bnb4("fp4", False), method=bnb(
        load_in_4bit=True, bnb_4bit_quant_type="fp4")),
    "bnb-int8": Format("float16", store=stored_int8,
                       method=bnb(load_in_8bit=True)),
    "mxfp4": Format("bfloat16", store=stored_mxfp4, role="stack", method={
        "quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router",
            "model.embed_tokens", "lm_head"]}),
}


def rounded(values, dtype):
    """As the files have it: bf16 as its bits."""
    if dtype == "float16":
        return values.astype(np.float16)
    if dtype == "bfloat16":
        word = np.ascontiguousarray(values).view(np.uint32)
        return ((word + np.uint32(0x7FFF) + ((word >> 16) & 1))
                >> 16).astype(np.uint16)
    return values


def widened(values):
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
