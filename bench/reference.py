# SPDX-License-Identifier: MIT

"""Computes the loss of a Llama, Qwen2 or Qwen3-MoE with NF4 linears and LoRA in
float64 numpy: the reference of benchmarks without PyTorch.

Uses no code of this project. NF4 with double quantization is that of QLoRA
(Dettmers et al., 2023), as bitsandbytes stores it. The block size must divide a
weight's columns.
"""

import json
import os

import numpy as np

from shapes import load_rows, safetensors_io
from tensors import has_experts, head_size

CODE_BOOK = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
    0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0], np.float32)
BLOCK, NESTED_BLOCK = 64, 256
SCALE = 2.0  # alpha / r


def dynamic_map():
    """Returns the 256 values of the 8-bit codes of scales: seven signed
    decades, 0 and 1."""
    numbers = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2**decade + 1)
        middles = 10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2
        numbers += list(middles) + list(-middles)
    return np.sort(np.array(numbers, np.float32))


def nearest(values, table):
    """Returns, for each value, the nearest entry of an increasing table."""
    places = np.searchsorted((table[1:] + table[:-1]) / 2, values)
    return table[places]


def through_scales(scales):
    """Returns scales after double quantization and decoding."""
    offset = scales.mean(dtype=np.float32)
    rest = scales - offset
    for first in range(0, len(rest), NESTED_BLOCK):
        part = rest[first:first + NESTED_BLOCK]
        largest = np.abs(part).max() or 1
        part[:] = nearest(part / largest, dynamic_map()) * largest
    return rest + offset


def through_nf4(weight):
    """Returns a weight after NF4 quantization and decoding."""
    assert weight.shape[1] % BLOCK == 0, weight.shape
    blocks = weight.astype(np.float32).reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1)
    numbers = nearest(blocks / np.where(scales, scales, 1)[:, None], CODE_BOOK)
    return (numbers * through_scales(scales)[:, None]).reshape(weight.shape)


def rotated(x, theta):
    """Applies RoPE to [heads, tokens, columns]; column i of the first half
    rotates with column i of the second."""
    tokens, half = x.shape[1], x.shape[2] // 2
    angles = np.outer(np.arange(tokens), theta ** (-np.arange(half) / half))
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class Model:
    """The model of a model folder and an adapter folder."""

    def __init__(self, folder, adapter):
        with open(os.path.join(folder, "config.json")) as file:
            self.config = json.load(file)
        self.adapter = safetensors_io.load(
            os.path.join(adapter, "adapter_model.safetensors"))
        self.weights = safetensors_io.load(
            os.path.join(folder, "model.safetensors"))
        for names in self.quantized_together():
            stack = through_nf4(np.concatenate(
                [self.weights[name] for name in names]))
            self.weights |= zip(names, np.split(stack, len(names)))
        for name, tensor in self.weights.items():
            self.weights[name] = tensor.astype(np.float64)

    def quantized_together(self):
        """Returns lists of weights that are quantized as one tensor, with one
        offset of the scales: gate and up weights of a layer's experts (gate 0,
        up 0, gate 1, ...), down weights of a layer's experts, or one other
        linear."""
        linears = [name for name in self.weights
                   if name.endswith("proj.weight")]
        stacks = {}
        for name in linears:
            layer, is_expert, _ = name.partition(".experts.")
            is_down = "down_proj" in name
            key = (layer, is_down) if is_expert else name
            stacks.setdefault(key, []).append(name)
        return stacks.values()

    def linear(self, x, module):
        y = x @ self.weights[f"{module}.weight"].T
        names = [f"base_model.model.{module}.lora_{part}.weight"
                 for part in "AB"]
        if names[0] in self.adapter:
            a, b = (self.adapter[name].astype(np.float64) for name in names)
            y += SCALE * (x @ a.T) @ b.T
        bias = self.weights.get(f"{module}.bias")
        return y if bias is None else y + bias

    def norm(self, x, name):
        square = np.mean(x * x, axis=-1, keepdims=True)
        return (x / np.sqrt(square + self.config["rms_norm_eps"])
                * self.weights[f"{name}.weight"])

    def attention(self, x, block):
        config, tokens = self.config, len(x)
        heads = config["num_attention_heads"]
        groups = heads // config["num_key_value_heads"]

        def split(name):
            y = self.linear(x, f"{block}.self_attn.{name}_proj").reshape(
                tokens, -1, head_size(config))
            norm = f"{block}.self_attn.{name}_norm"
            if f"{norm}.weight" in self.weights:
                y = self.norm(y, norm)
            return y.swapaxes(0, 1)
        q, k = (rotated(split(name), config["rope_theta"]) for name in "qk")
        k, v = (np.repeat(y, groups, axis=0) for y in (k, split("v")))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        scores += np.triu(np.full((tokens, tokens), -np.inf), 1)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = scores / scores.sum(axis=-1, keepdims=True) @ v
        return self.linear(y.swapaxes(0, 1).reshape(tokens, -1),
                           f"{block}.self_attn.o_proj")

    def mlp(self, x, block):
        gate = self.linear(x, f"{block}.gate_proj")
        up = self.linear(x, f"{block}.up_proj")
        return self.linear(gate / (1 + np.exp(-gate)) * up,
                           f"{block}.down_proj")

    def experts(self, x, block):
        """Applies each token's best experts, weighted by the softmax of their
        router scores."""
        scores = self.linear(x, f"{block}.gate")
        places = np.argsort(-scores, axis=-1, kind="stable")
        places = places[:, :self.config["num_experts_per_tok"]]
        best = np.exp(np.take_along_axis(scores, places, axis=-1))
        best /= best.sum(axis=-1, keepdims=True)
        y = np.zeros_like(x)
        for row, choice in np.ndindex(places.shape):
            expert = f"{block}.experts.{places[row, choice]}"
            y[row] += best[row, choice] * self.mlp(x[row:row + 1], expert)[0]
        return y

    def loss_sum(self, ids, labels):
        """Returns the summed loss of a row, and the number of its tokens in the
        loss."""
        x = self.weights["model.embed_tokens.weight"][ids]
        mlp = self.experts if has_experts(self.config) else self.mlp
        for layer in range(self.config["num_hidden_layers"]):
            block = f"model.layers.{layer}"
            x = x + self.attention(self.norm(x, f"{block}.input_layernorm"),
                                   block)
            x = x + mlp(self.norm(x, f"{block}.post_attention_layernorm"),
                        f"{block}.mlp")
        head = self.weights.get("lm_head.weight",
                                self.weights["model.embed_tokens.weight"])
        logits = self.norm(x, "model.norm")[:-1] @ head.T
        logits -= logits.max(axis=-1, keepdims=True)
        targets = labels[1:]
        rows = np.flatnonzero(targets >= 0)
        losses = (np.log(np.exp(logits[rows]).sum(axis=-1))
                  - logits[rows, targets[rows]])
        return losses.sum(), len(rows)


def first_loss(folder, adapter, rows):
    """Returns the mean loss over the labelled tokens of `rows`, which are pairs
    (ids, labels)."""
    model = Model(folder, adapter)
    sums = np.sum([model.loss_sum(*row) for row in rows], axis=0)
    return float(sums[0] / sums[1])


def rows_of(path):
    """Returns the rows of a token file or rows file, as (ids, labels)."""
    file = safetensors_io.load(path)
    if "row_offsets" in file:
        return load_rows(path)
    length = file["input_ids"].shape[-1]
    return list(zip(file["input_ids"].reshape(-1, length),
                    file["labels"].reshape(-1, length)))
