# SPDX-License-Identifier: MIT

"""Writes nf4_odd.safetensors: odd tensors, bitsandbytes' codes of them, and the
decoded values (bnb_values.py).

Run by hand with torch 2.15.0, bitsandbytes 0.50.2 and safetensors; the output
is committed. A case NAME.<block>.<double> has these tensors:

    input, packed, absmax, dequantized
    nested_absmax, nested_offset, nested_quant_map   with double quantization
"""

import pathlib

import torch
import bitsandbytes.functional as F
from safetensors.torch import save_file

from bnb_values import decode_state


def inputs():
    torch.manual_seed(5)
    wide = torch.randn(70 * 256) * torch.rand(70 * 256).exp()
    zeros = torch.randn(64 * 6)
    zeros[:128] = 0
    zeros[-64:] = 0
    partial_zeros = torch.randn(64 * 2 + 5)
    partial_zeros[128:] = 0
    return {
        "wide": wide,
        "odd": torch.randn(64 * 3 + 7),
        "tiny": torch.tensor([0.25]),
        "zeros": zeros,
        "partial_zeros": partial_zeros,
        "all_zeros": torch.zeros(64 * 4),
        "narrow_rows": torch.randn(8, 48),
        "long_rows": torch.randn(5, 176),
        "odd_rows": torch.randn(7, 33),
        "even_rows": torch.randn(6, 90),
        "half": torch.randn(1000).bfloat16().float(),
    }


tensors = {}
for name, x in inputs().items():
    for block in (64, 4096):
        for double in (False, True):
            packed, state = F.quantize_4bit(
                x, blocksize=block, compress_statistics=double, quant_type="nf4"
            )
            case = f"{name}.{block}.{int(double)}"
            tensors[f"{case}.input"] = x.clone()
            tensors[f"{case}.packed"] = packed.reshape(-1)
            tensors[f"{case}.absmax"] = state.absmax
            tensors[f"{case}.dequantized"] = decode_state(packed, state)
            if double:
                tensors[f"{case}.nested_absmax"] = state.state2.absmax
                tensors[f"{case}.nested_offset"] = state.offset.reshape(1)
                tensors[f"{case}.nested_quant_map"] = state.state2.code
save_file(
    {name: tensor.contiguous() for name, tensor in tensors.items()},
    pathlib.Path(__file__).with_name("nf4_odd.safetensors"),
)
