# SPDX-License-Identifier: MIT

"""The logits of a small Llama, in float64 with numpy only: a second opinion on
answers and log-probabilities."""

import json
import os

import numpy as np

import safetensors_io


class Llama:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.weights = {
            name.removeprefix("model."): value.astype(np.float64)
            for name, value in safetensors_io.load(
                os.path.join(folder, "model.safetensors")).items()}

    def _norm(self, x, name):
        scale = np.sqrt((x * x).mean(-1, keepdims=True)
                        + self.config["rms_norm_eps"])
        return x / scale * self.weights[name + ".weight"]

    def _rotated(self, x, start):
        """Applies RoPE to heads x tokens x values. `start`: first position."""
        size = x.shape[-1]
        theta = self.config["rope_parameters"]["rope_theta"]
        angles = np.outer(np.arange(start, start + x.shape[1]),
                          theta ** (-np.arange(0, size, 2) / size))
        angles = np.concatenate([angles, angles], -1)
        half = np.concatenate([-x[..., size // 2:], x[..., :size // 2]], -1)
        return x * np.cos(angles) + half * np.sin(angles)

    def _attention(self, x, layer, cache):
        heads = self.config["num_attention_heads"]
        groups = heads // self.config["num_key_value_heads"]

        def of(name):
            out = x @ self.weights[f"{layer}.self_attn.{name}_proj.weight"].T
            return out.reshape(len(x), -1,
                               self.config["head_dim"]).swapaxes(0, 1)

        past = cache.get(layer)
        start = past[0].shape[1] if past else 0
        q, k, v = self._rotated(of("q"), start), \
            self._rotated(of("k"), start), of("v")
        if past:
            k, v = (np.concatenate(pair, 1) for pair in zip(past, (k, v)))
        cache[layer] = k, v
        scores = q @ k.repeat(groups, 0).swapaxes(1, 2)
        scores /= np.sqrt(self.config["head_dim"])
        scores += np.triu(np.full((len(x), start + len(x)), -np.inf),
                          start + 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = (weights @ v.repeat(groups, 0)).swapaxes(0, 1)
        return out.reshape(len(x), -1) @ self.weights[
            f"{layer}.self_attn.o_proj.weight"].T

    def _mlp(self, x, layer):
        gate, up, down = (
            self.weights[f"{layer}.mlp.{name}_proj.weight"].T
            for name in ("gate", "up", "down"))
        a = x @ gate
        return (a / (1 + np.exp(-a)) * (x @ up)) @ down

    def log_probs(self, ids, cache=None):
        """Returns the log-probabilities of all tokens after each token.
        `cache`: keys and values of the tokens before, to which it adds."""
        cache = {} if cache is None else cache
        embedding = self.weights["embed_tokens.weight"]
        x = embedding[ids]
        for number in range(self.config["num_hidden_layers"]):
            layer = f"layers.{number}"
            x = x + self._attention(
                self._norm(x, f"{layer}.input_layernorm"), layer, cache)
            x = x + self._mlp(
                self._norm(x, f"{layer}.post_attention_layernorm"), layer)
        logits = self._norm(x, "norm") @ embedding.T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def greedy(self, ids, count, ends, margin=1e-3):
        """Returns the likeliest next tokens, at most `count`, and stops after
        one of `ends`. Returns None if two tokens are almost equally likely, so
        that rounding could decide."""
        answer, cache, new = [], {}, ids
        while len(answer) < count and not (answer and answer[-1] in ends):
            last = self.log_probs(np.array(new), cache)[-1]
            second, first = np.argsort(last)[-2:]
            if last[first] - last[second] < margin:
                return None
            answer.append(int(first))
            new = answer[-1:]
        return answer
