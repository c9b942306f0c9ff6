# SPDX-License-Identifier: MIT

"""How files store the linears of the covering array's models: FORMATS has an
entry for each format. Random values are the same on every machine. For stored
formats the codes are drawn, and the values are computed from the codes.
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
    """Returns random 64-bit integers. Numpy never changes the output of its
    Philox."""
    key = [seed, zlib.crc32(name.encode())]
    return np.random.Philox(key=np.array(key, np.uint64)).random_raw(count)


def draw(seed, name, shape, deviation=1.0, mean=0.0):
    """Returns uniform float32 values."""
    unit = (bits(seed, name, int(np.prod(shape))) >> np.uint64(40)).astype(
        np.float32) * np.float32(2.0 ** -23) - np.float32(1)
    return (unit * np.float32(deviation * 3 ** 0.5)
            + np.float32(mean)).reshape(shape)


def bnb_tables():
    """Returns bitsandbytes' NF4 code book and its map of nested scales."""
    tensors = safetensors_io.load(STORED_EXAMPLE)
    first = next(n for n in tensors if n.endswith(".nested_quant_map"))
    name = first[:-len(".nested_quant_map")]
    return tensors[f"{name}.quant_map"], tensors[first]


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
        values = book[codes] * absmax[np.arange(count) // block]
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
    """Draws a weight [experts, in, out] that is stored as [experts, out,
    in]."""
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


def scale_of_fp8(seed, name, shape):
    """Draws the scales of a model's linears: one per row, one for all, or one
    per block of 128 x 128, which may be partial. Returns the stored scale, and
    the factor of each element."""
    kind = fp8_kind(name)
    tile = {"channel": (1, shape[1]), "tensor": shape,
            "block": (TILE, TILE)}[kind]
    count = [-(-extent // size) for extent, size in zip(shape, tile)]
    scales = draw(seed, name + "_scale", count, 0.003 / shape[1] ** 0.5,
                  0.01 / shape[1] ** 0.5)
    scales = rounded(scales, "float32" if kind == "block" else "bfloat16")
    each = widened(scales)
    for axis in (0, 1):
        each = each.repeat(tile[axis], axis)
    return (scales.reshape(1) if kind == "tensor" else scales,
            each[:shape[0], :shape[1]])


def fp8_kind(name):
    module = name.split(".")[-2]
    return next((kind for kind, modules in FP8_SCALES.items()
                 if module in modules), "block")


def stored_fp8(seed, name, shape):
    """Draws a weight that is stored as E4M3, which has no infinities and whose
    largest code is NaN."""
    magnitudes = (bits(seed, name, int(np.prod(shape))) % np.uint64(127)
                  ).astype(np.uint8)
    signs = (bits(seed, name + ".sign", magnitudes.size) & np.uint64(1)
             ).astype(np.uint8)
    exponent, fraction = magnitudes >> 3, (magnitudes & 7) / np.float32(8)
    values = np.where(exponent == 0, np.ldexp(fraction, -6), np.ldexp(
        1 + fraction, exponent.astype(np.int32) - 7)).astype(np.float32)
    scales, each = scale_of_fp8(seed, name, shape)
    values = np.where(signs, -values, values).reshape(shape) * each
    codes = (magnitudes | signs << 7).view(safetensors_io.E4M3)
    return {name: codes.reshape(shape), name + "_scale": scales}, values


def words(codes, places):
    """Packs eight 4-bit codes of the last axis into a 32-bit word, each at its
    place in `places`."""
    codes = codes.reshape(*codes.shape[:-1], -1, 8).astype(np.uint32)
    return (codes << (4 * np.array(places, np.uint32))).sum(
        -1, dtype=np.uint32).view(np.int32)


def stored_integers(is_awq):
    """GPTQ and AWQ store [in, out], with an integer zero point and a scale for
    a group of inputs. GPTQ packs 32-bit words along the inputs, AWQ along the
    outputs, even ones first. Both formats pack zero points along the outputs;
    GPTQ's files store each zero point less one."""
    places = (0, 4, 1, 5, 2, 6, 3, 7) if is_awq else range(8)

    def store(seed, name, shape):
        module, (outputs, inputs) = name[:-len(".weight")], shape
        groups = inputs // GROUP

        def drawn(part, rows):
            return (bits(seed, f"{module}.{part}", rows * outputs) >> np.uint64(
                60)).astype(np.int32).reshape(rows, outputs)
        codes, zeros = drawn("qweight", inputs), drawn("qzeros", groups)
        scales = draw(seed, f"{module}.scales", zeros.shape, 0.05 / inputs
                      ** 0.5, 0.15 / inputs ** 0.5).astype(np.float16)
        values = (codes - zeros.repeat(GROUP, 0)) * scales.astype(
            np.float32).repeat(GROUP, 0)
        parts = {"scales": scales, "qzeros": words(zeros, places)}
        if is_awq:
            parts["qweight"] = words(codes, places)
        else:
            parts["qweight"] = np.ascontiguousarray(words(codes.T, places).T)
            parts["qzeros"] = (parts["qzeros"].view(np.uint32)
                               - np.uint32(0x11111111)).view(np.int32)
            parts["g_idx"] = (np.arange(inputs) // GROUP).astype(np.int32)
        return ({f"{module}.{part}": value for part, value in parts.items()},
                np.ascontiguousarray(values.T.astype(np.float32)))
    return store


class Format:
    """A format of model files.

    dtype    of plain tensors
    store    function that stores the weights of `roles`; none: all are plain
    method   config.json's quantization_config for stored weights
    options  quantize plain tensors on load
    inner    width of MLPs and experts, if the format's block size limits it
    """

    def __init__(self, dtype, options=(), store=None, roles=("linear",),
                 method=(), inner=None):
        self.dtype, self.options = dtype, dict(options)
        self.store, self.roles, self.method = store, roles, dict(method)
        self.inner = inner

    def is_plain(self):
        return not self.options and not self.store

    def stores(self, name, role):
        return (self.store and role in self.roles
                and not (self.inner and name.split(".")[-2] in NARROW))


# Linears, besides the head, that FP8, GPTQ and AWQ do not quantize: gates with
# one output.
NARROW = ("shared_expert_gate",)
TILE, GROUP = 128, 16
FP8_SCALES = {"channel": ("q_proj", "k_proj", "qkv_proj", "c_attn", "w2"),
              "tensor": ("v_proj", "o_proj")}


def compressed():
    """Returns compressed-tensors' groups of modules, each with a strategy."""
    groups = {f"group_{i}": {
        "targets": [f"re:.*{module}$" for module in modules],
        "weights": {"num_bits": 8, "type": "float", "strategy": kind}}
        for i, (kind, modules) in enumerate(FP8_SCALES.items())}
    groups["others"] = {"targets": ["Linear"], "weights": {
        "num_bits": 8, "type": "float", "strategy": "block",
        "block_structure": [TILE, TILE]}}
    return {"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": groups,
            "ignore": ["lm_head", *(f"re:.*{module}$" for module in NARROW)]}


def integers(method, **more):
    return {"quant_method": method, "bits": 4, "group_size": GROUP,
            "modules_to_not_convert": ["lm_head", *NARROW], **more}


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
    "fp8": Format("bfloat16", store=stored_fp8, roles=("linear", "expert"),
                  method=compressed(), inner=160),
    "gptq": Format("float16", store=stored_integers(False), inner=96,
                   roles=("linear", "expert"), method=integers(
                       "gptq", sym=False, desc_act=False,
                       checkpoint_format="gptq")),
    "awq": Format("float16", store=stored_integers(True), inner=96,
                  roles=("linear", "expert"), method=integers(
                      "awq", zero_point=True, version="gemm")),
    "mxfp4": Format("bfloat16", store=stored_mxfp4, roles=("stack",), method={
        "quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router",
            "model.embed_tokens", "lm_head"]}),
}


def rounded(values, dtype):
    """Returns values rounded to `dtype` as files store them; bf16 as its
    bits."""
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
