# SPDX-License-Identifier: MIT

"""Writes int8_product.safetensors: the results of bitsandbytes' MatMul8bitLt.

Run by hand with torch, bitsandbytes 0.50.2 and safetensors, on a CPU with
AVX-512; the output is committed. The tensors of a case have the prefix
NAME.THRESHOLD.TYPE:

    x, CB, SCB   activations, the weight's codes and scales
    y            result of the forward
    dy, dx       gradients of y and of x

CB is int8; all other tensors are stored in float32. The values of x, y, dy and
dx were computed in TYPE.
"""

import pathlib

import bitsandbytes as bnb
import torch
from bitsandbytes.autograd._functions import MatMul8bitLt, MatmulLtState
from safetensors.torch import save_file

torch.manual_seed(11)
tensors = {}
for name, (m, out, width) in {"odd": (7, 11, 37), "one": (1, 5, 64),
                              "wide": (20, 24, 96)}.items():
    x, dy = torch.randn(m, width), torch.randn(m, out)
    x[0] *= 0.01
    x[m // 2, 3], x[m - 1, 20] = 7.5, -40.0
    codes, scales, _ = bnb.functional.int8_vectorwise_quant(
        torch.randn(out, width).half())
    for threshold in (0.0, 6.0, 1.0):
        for dtype in (torch.float32, torch.bfloat16):
            a = x.to(dtype).clone().requires_grad_()
            state = MatmulLtState(CB=codes, SCB=scales)
            state.threshold, state.has_fp16_weights = threshold, False
            y = MatMul8bitLt.apply(a, codes, None, None, state)
            y.backward(dy.to(dtype))
            case = f"{name}.{threshold:g}.{str(dtype)[6:]}"
            for key, value in {"x": a.detach(), "SCB": scales, "y": y.detach(),
                               "dy": dy.to(dtype), "dx": a.grad}.items():
                tensors[f"{case}.{key}"] = value.float().contiguous().clone()
            tensors[f"{case}.CB"] = codes.clone()
save_file(tensors, pathlib.Path(__file__).with_name("int8_product.safetensors"))
