# SPDX-License-Identifier: MIT

"""Decodes bitsandbytes' NF4 and FP4 as the format defines them: value i of the
flattened tensor has the scale of block i // blocksize.

bitsandbytes' CUDA decoder and its CPU decoder without AVX-512 do the same. The
AVX-512 decoder of 0.50.2 takes other scales if the number of columns is a
multiple of 16 but not of the block. No golden case may depend on it: with this
module every machine computes the same reference.
"""

import json

import torch


def decode(packed, book, scales, block, shape):
    """f32 [shape] from two codes a byte (the first in the high half), a code
    book f32 [16] and the scales of the blocks, f32 [blocks]."""
    count = torch.Size(shape).numel()
    packed = packed.reshape(-1)
    codes = torch.stack([packed >> 4, packed & 15], 1).view(-1)[:count]
    return (book[codes.long()] * scales[torch.arange(count) // block]
            ).view(shape)


def nested_scales(codes, map_, absmax, block, offset):
    """Decodes scales that are one-byte codes to f32 [blocks]."""
    blocks = torch.arange(len(codes)) // block
    return map_[codes.long()] * absmax[blocks] + offset


def decode_state(packed, state):
    """Decodes the results of quantize_4bit."""
    scales = state.absmax
    if state.nested:
        scales = nested_scales(scales, state.state2.code, state.state2.absmax,
                               state.state2.blocksize, state.offset)
    return decode(packed, state.code, scales, state.blocksize, state.shape)


def decode_stored(tensors, name):
    """Decodes the tensors of a file, as transformers writes them."""
    def part(key):
        return tensors[f"{name}.{key}"]
    described = next(value for key, value in tensors.items()
                     if key.startswith(f"{name}.quant_state."))
    state = json.loads(bytes(described.tolist()))
    scales = part("absmax")
    if "nested_offset" in state:
        scales = nested_scales(scales, part("nested_quant_map"),
                               part("nested_absmax"),
                               state["nested_blocksize"],
                               state["nested_offset"])
    return decode(tensors[name], part("quant_map"), scales,
                  state["blocksize"], state["shape"])
