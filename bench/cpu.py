#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The CPU table: our training step beside PyTorch's, on the same machine.

    bench/cpu.py [--shapes smollm2-135m,...] [--rounds 2] [--steps 6]
                 [--compute float32,bfloat16] [--peer-python PYTHON]
                 [--work DIR] [--json FILE]

For each shape: random bf16 weights, NF4 with double quantisation, r = 16 on
all linears, B = 1, T = 512, AdamW; ours and the peer (transformers + PEFT +
bitsandbytes, bench/peer_cpu.py) take turns. Prints the median tokens per
second of all steps after the first, peak resident memory, and their ratio.
The peer runs with the python that --peer-python names, which needs torch,
transformers, peft and bitsandbytes.
"""

import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import sys

import numpy as np

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOLS = os.path.join(REPOSITORY, "build", "bin")
LENGTH = 512

SHAPES = {
    "smollm2-135m": dict(
        family="llama", hidden_size=576, intermediate_size=1536,
        num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, rope_theta=1e5),
    "qwen2.5-0.5b": dict(
        family="qwen2", hidden_size=896, intermediate_size=4864,
        num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=151936, rope_theta=1e6),
    "llama3.2-1b": dict(
        family="llama", hidden_size=2048, intermediate_size=8192,
        num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, rope_theta=5e5),
}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def tensor_shapes(shape):
    """Names and shapes of the model's tensors, as Hugging Face has them."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    dim = hidden // shape["num_attention_heads"]
    narrow = shape["num_key_value_heads"] * dim
    tensors = {"model.embed_tokens.weight": (shape["vocab_size"], hidden),
               "model.norm.weight": (hidden,)}
    for layer in range(shape["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        linears = {"self_attn.q_proj": (hidden, hidden),
                   "self_attn.k_proj": (narrow, hidden),
                   "self_attn.v_proj": (narrow, hidden),
                   "self_attn.o_proj": (hidden, hidden),
                   "mlp.gate_proj": (inner, hidden),
                   "mlp.up_proj": (inner, hidden),
                   "mlp.down_proj": (hidden, inner)}
        for name, size in linears.items():
            tensors[f"{prefix}{name}.weight"] = size
            if shape["family"] == "qwen2" and name.split(".")[1][0] in "qkv":
                tensors[f"{prefix}{name}.bias"] = size[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = (hidden,)
    return tensors


def write_model(folder, shape):
    """A Hugging Face folder with random bf16 weights, written once."""
    path = os.path.join(folder, "model.safetensors")
    os.makedirs(folder, exist_ok=True)
    config = {key: value for key, value in shape.items() if key != "family"}
    config.update(architectures=[CLASSES[shape["family"]]],
                  model_type=shape["family"], tie_word_embeddings=True,
                  hidden_act="silu", rms_norm_eps=1e-6,
                  max_position_embeddings=4096, torch_dtype="bfloat16")
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    if os.path.exists(path):
        return
    random = np.random.default_rng(0)
    header, offset = {}, 0
    shapes = tensor_shapes(shape)
    for name, size in shapes.items():
        end = offset + 2 * int(np.prod(size))
        header[name] = {"dtype": "BF16", "shape": list(size),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in shapes.items():
            if name.endswith("norm.weight"):
                values = np.ones(size, np.float32)
            else:
                values = 0.02 * random.standard_normal(size, np.float32)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16)
                       .tobytes())
    os.rename(path + ".part", path)


def write_batch(folder, vocabulary):
    sys.path.insert(0, os.path.join(REPOSITORY, "tests", "e2e"))
    import safetensors_io
    ids = np.random.default_rng(1).integers(
        0, vocabulary, (1, 1, LENGTH)).astype(np.int32)
    safetensors_io.save(os.path.join(folder, "batch.safetensors"),
                        {"input_ids": ids, "labels": ids})


def run_ours(folder, compute, steps):
    """tokens/s of each step after the first, and peak resident GiB."""
    module = os.path.join(folder, f"train-{compute}.so")
    out = os.path.join(folder, "out")
    call = lambda *words: subprocess.run(  # noqa: E731
        words, check=True, capture_output=True, text=True)
    call(f"{TOOLS}/qlora-import", folder, "-o", f"{folder}/m.mlir")
    call(f"{TOOLS}/qloracc", f"{folder}/m.mlir", "-o", module,
         "--load-in-4bit", "--bnb-4bit-use-double-quant", "--lora-r", "16",
         "--lora-alpha", "32", "--per-device-train-batch-size", "1",
         "--max-length", str(LENGTH), "--compute-dtype", compute)
    call(f"{TOOLS}/qlora-run", module, "--train-file",
         f"{folder}/batch.safetensors", "--max-steps", str(steps),
         "--logging-steps", "1", "--learning-rate", "1e-4",
         "--output-dir", out)
    with open(f"{out}/metrics.jsonl") as lines:
        rows = [json.loads(line) for line in lines]
    rates = [row["tokens_per_second"] for row in rows if "loss" in row][1:]
    peak = max(row["memory_bytes"] for row in rows
               if "memory_bytes" in row)
    return rates, peak / 2**30


def run_peer(python, name, compute, steps):
    done = subprocess.run(
        [python, os.path.join(REPOSITORY, "bench", "peer_cpu.py"), name, "nf4",
         "--compute", {"float32": "f32", "bfloat16": "bf16"}[compute],
         "--steps", str(steps)], check=True, capture_output=True, text=True)
    rate = float(re.search(r": ([0-9.]+) tok/s", done.stdout).group(1))
    memory = float(re.search(r"rss ([0-9.]+) GiB", done.stdout).group(1))
    return rate, memory


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--compute", default="float32,bfloat16")
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    table = []
    for name in options.shapes.split(","):
        folder = os.path.join(options.work, name)
        write_model(folder, SHAPES[name])
        write_batch(folder, SHAPES[name]["vocab_size"])
        for compute in options.compute.split(","):
            ours, peers, memory, peer_memory = [], [], 0.0, 0.0
            for _ in range(options.rounds):
                rates, memory = run_ours(folder, compute, options.steps)
                ours += rates
                if options.peer_python:
                    rate, peer_memory = run_peer(options.peer_python, name,
                                                 compute, options.steps)
                    peers.append(rate)
            row = dict(shape=name, compute=compute,
                       ours=statistics.median(ours), ours_gib=memory)
            text = (f"{name} {compute}: ours {row['ours']:.1f} tok/s, "
                    f"{memory:.2f} GiB")
            if peers:
                row.update(peer=statistics.median(peers),
                           peer_gib=peer_memory)
                text += (f"; peer {row['peer']:.1f} tok/s, "
                         f"{peer_memory:.2f} GiB; ratio "
                         f"{row['ours'] / row['peer']:.2f}")
            print(text, flush=True)
            table.append(row)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
