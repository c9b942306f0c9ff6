# SPDX-License-Identifier: MIT

"""Linear layers with NF4 weights in plain PyTorch, for baseline_gpu.py without
bitsandbytes. Weights are quantized as by load_in_4bit with double quantization,
and decoded before each GEMM, forward and backward, as in bitsandbytes' layers.

    nf4_torch.py MODEL.safetensors STORED.safetensors

compares with weights that bitsandbytes quantized on a CPU, which the golden
cases store. Packed codes and decoded values must be bit-identical; codes of
scales may differ by one.
"""

import sys

import torch

BLOCK, NESTED_BLOCK = 64, 256
CODE_BOOK = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
    0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0])


def dynamic_map():
    """Returns the 256 values of the 8-bit codes of scales: seven signed
    decades, 0 and 1."""
    numbers = [torch.tensor([0.0, 1.0])]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2**decade + 1)
        middles = 10.0 ** (decade - 6) * ((edges[:-1] + edges[1:]) / 2)
        numbers += [middles, -middles]
    return torch.cat(numbers).sort().values


def nearest(values, table):
    """Returns, for each value, the index of the nearest entry of an increasing
    table."""
    return torch.bucketize(values, (table[1:] + table[:-1]) / 2)


def quantize(weight):
    """Quantizes a weight whose size is a multiple of BLOCK. Returns the tensors
    that store it."""
    device = weight.device
    blocks = weight.float().reshape(-1, BLOCK)
    scales = blocks.abs().amax(1)
    inverse = 1 / scales.clamp(min=1e-38)
    codes = nearest(blocks * inverse[:, None], CODE_BOOK.to(device)).to(
        torch.uint8).reshape(-1, 2)
    offset = scales.double().mean().float()
    shifted = torch.nn.functional.pad(scales - offset,
                                      (0, -len(scales) % NESTED_BLOCK))
    shifted = shifted.reshape(-1, NESTED_BLOCK)
    nested = shifted.abs().amax(1)
    places = nearest(shifted / nested.clamp(min=1e-38)[:, None],
                     dynamic_map().to(device))
    return {"packed": codes[:, 0] << 4 | codes[:, 1],
            "absmax": places.reshape(-1)[:len(scales)].to(torch.uint8),
            "nested_absmax": nested, "nested_offset": offset}


def decode(packed, absmax, nested_absmax, nested_offset, numbers, pairs,
           dtype):
    """Decodes a weight. `numbers` is dynamic_map(). `pairs` has the two values
    of each packed byte."""
    nested = nested_absmax.repeat_interleave(NESTED_BLOCK)[:len(absmax)]
    scales = numbers[absmax.int()] * nested + nested_offset
    values = pairs[packed.int()].reshape(-1, BLOCK)
    return (values * scales[:, None]).to(dtype)


def byte_pairs():
    byte = torch.arange(256)
    return torch.stack([CODE_BOOK[byte >> 4], CODE_BOOK[byte & 15]], 1)


class Product(torch.autograd.Function):
    """Computes x W^T. Decodes the weight again for the backward pass."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return torch.nn.functional.linear(x.bfloat16(), layer.decoded())

    @staticmethod
    def backward(ctx, gradient):
        return gradient.bfloat16() @ ctx.layer.decoded(), None


class Linear(torch.nn.Linear):
    """A frozen layer that PEFT accepts as a linear layer."""
    decode = staticmethod(decode)  # baseline_gpu.py may compile it

    def __init__(self, layer):
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = (layer.in_features,
                                               layer.out_features)
        parts = quantize(layer.weight.data)
        device = layer.weight.device
        self.weight = torch.nn.Parameter(parts.pop("packed"),
                                         requires_grad=False)
        for name, part in {**parts, "numbers": dynamic_map().to(device),
                           "pairs": byte_pairs().to(device)}.items():
            self.register_buffer(name, part)
        self.bias = layer.bias

    def decoded(self):
        return self.decode(
            self.weight, self.absmax, self.nested_absmax, self.nested_offset,
            self.numbers, self.pairs, torch.bfloat16).view(
                self.out_features, self.in_features)

    def forward(self, x):
        result = Product.apply(x, self)
        return result if self.bias is None else result + self.bias


def main():
    from safetensors.torch import load_file
    model, stored = map(load_file, sys.argv[1:])
    for name in sorted(name for name in model if f"{name}.packed" in stored):
        parts = quantize(model[name])
        got = decode(*parts.values(), dynamic_map(), byte_pairs(),
                     torch.float32)
        exact = decode(*(stored[f"{name}.{part}"].flatten() for part in parts),
                       dynamic_map(), byte_pairs(), torch.float32)
        wanted = stored[f"{name}.dequantized"]
        assert torch.equal(parts["packed"], stored[f"{name}.packed"].flatten())
        codes = parts["absmax"].int() - stored[f"{name}.absmax"].int()
        assert codes.abs().max() <= 1, name  # bitsandbytes uses buckets
        if wanted.shape[1] % BLOCK == 0:  # else the blocks differ
            assert torch.equal(exact.view(wanted.shape), wanted), name
        print(f"{name}: quantized here, {(got - exact).abs().max():.1e} from "
              "what is stored")


if __name__ == "__main__":
    main()
