# SPDX-License-Identifier: MIT

"""Writes models of real shapes, with random weights or none, and data."""

import json
import os
import sys

import numpy as np

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(REPOSITORY, "tests", "e2e"))
import safetensors_io  # noqa: E402
from tensors import file_head, is_adapted, tensor_shapes  # noqa: E402

LENGTH = 512
RANK = 16

SHAPES = {
    # The first four are invented models, small enough for tests and wide enough
    # for quantization blocks. With an initializer_range of 0.1, every weight
    # affects the loss.
    "tiny-llama": dict(
        family="llama", hidden_size=128, intermediate_size=320,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=512, rope_theta=1e4, initializer_range=0.1),
    "deep-llama": dict(
        family="llama", hidden_size=256, intermediate_size=704,
        num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=1024, rope_theta=1e4),
    "tiny-qwen2": dict(
        family="qwen2", hidden_size=192, intermediate_size=448,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=640, rope_theta=1e6, initializer_range=0.1),
    "tiny-qwen3-moe": dict(
        family="qwen3_moe", hidden_size=128, intermediate_size=384,
        moe_intermediate_size=192,
        num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, vocab_size=640, rope_theta=1e6,
        tie_word_embeddings=False, initializer_range=0.1),
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
    "llama3.1-8b": dict(
        family="llama", hidden_size=4096, intermediate_size=14336,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, rope_theta=5e5, tie_word_embeddings=False),
    "llama3.1-70b": dict(
        family="llama", hidden_size=8192, intermediate_size=28672,
        num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        vocab_size=128256, rope_theta=5e5, tie_word_embeddings=False),
    "qwen3-0.6b": dict(
        family="qwen3", hidden_size=1024, intermediate_size=3072,
        num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, vocab_size=151936, rope_theta=1e6),
    "qwen3-8b": dict(
        family="qwen3", hidden_size=4096, intermediate_size=12288,
        num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, vocab_size=151936, rope_theta=1e6,
        tie_word_embeddings=False),
    # An invented model with Qwen3's vocabulary and attention proportions. It is
    # small enough for the machines that train the dense models.
    "qwen3-moe-0.7b": dict(
        family="qwen3_moe", hidden_size=1024, intermediate_size=2048,
        moe_intermediate_size=512,
        num_experts=16, num_experts_per_tok=4, norm_topk_prob=True,
        num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4,
        head_dim=128, vocab_size=151936, rope_theta=1e6,
        tie_word_embeddings=False),
}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
# Rows per training step.
BATCH_ROWS = 8


def write_config(folder, shape, positions=4096):
    """Writes config.json, and returns it."""
    os.makedirs(folder, exist_ok=True)
    config = {"tie_word_embeddings": True}
    config.update((key, value) for key, value in shape.items()
                  if key != "family")
    config.update(architectures=[CLASSES[shape["family"]]],
                  model_type=shape["family"], hidden_act="silu",
                  rms_norm_eps=1e-6, max_position_embeddings=positions,
                  torch_dtype="bfloat16")
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    return config


def write_shape(folder, shape, positions=4096):
    """Writes a Hugging Face folder for the compiler, with sparse weights."""
    config = write_config(folder, shape, positions)
    safetensors_io.save_sparse(os.path.join(folder, "model.safetensors"),
                               tensor_shapes(config))


def write_model(folder, shape):
    """Writes a Hugging Face folder with random bf16 weights, unless it
    exists."""
    path = os.path.join(folder, "model.safetensors")
    config = write_config(folder, shape)
    if os.path.exists(path):
        return
    random = np.random.default_rng(0)
    deviation = config.get("initializer_range", 0.02)
    shapes = tensor_shapes(config)
    head, _ = file_head(shapes, "BF16", 2)
    with open(path + ".part", "wb") as file:
        file.write(head)
        for name, size in shapes.items():
            if name.endswith("norm.weight"):
                values = np.ones(size, np.float32)
            else:
                values = random.standard_normal(size, np.float32)
                values *= np.float32(deviation)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16)
                       .tobytes())
    os.rename(path + ".part", path)


def write_adapter(folder, config):
    """Writes an initial PEFT adapter for the modules that is_adapted() selects.
    A is initialised as by PEFT. B is not zero, so that the first loss depends
    on A and B."""
    os.makedirs(folder, exist_ok=True)
    random = np.random.default_rng(2)
    tensors, targets = {}, set()
    for name, size in tensor_shapes(config).items():
        if not is_adapted(name, config):
            continue
        module = name.removesuffix(".weight")
        targets.add(module.rsplit(".", 1)[1])
        bound = size[1] ** -0.5
        tensors[f"base_model.model.{module}.lora_A.weight"] = random.uniform(
            -bound, bound, (RANK, size[1])).astype(np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = (
            0.01 * random.standard_normal((size[0], RANK), np.float32))
    safetensors_io.save(os.path.join(folder, "adapter_model.safetensors"),
                        tensors)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK,
                   "lora_alpha": 2 * RANK, "lora_dropout": 0.0,
                   "bias": "none", "target_modules": sorted(targets)}, file)


def write_batch(path, vocabulary, length=LENGTH, count=1, rows=1):
    """Writes a token file of [count, rows, length] random ids, all labelled."""
    ids = np.random.default_rng(1).integers(
        0, vocabulary, (count, rows, length)).astype(np.int32)
    safetensors_io.save(path, {"input_ids": ids, "labels": ids})


def save_rows(path, rows):
    """Writes a rows file from a list of (ids, labels)."""
    ids, labels = (np.concatenate(column) for column in zip(*rows))
    lengths = [len(row) for row, _ in rows]
    safetensors_io.save(path, {
        "input_ids": ids, "labels": labels,
        "row_offsets": np.concatenate([[0], np.cumsum(lengths)])})


def load_rows(path):
    """Returns the rows of a rows file, as (ids, labels)."""
    file = safetensors_io.load(path)
    ends = file["row_offsets"][1:-1]
    return list(zip(np.split(file["input_ids"], ends),
                    np.split(file["labels"], ends)))


def write_rows(path, vocabulary, length=LENGTH, count=512):
    """Writes a fine-tuning set: `count` rows of 40 to `length` tokens, about
    170 on average. The first 60 % of each row have no label."""
    random = np.random.default_rng(1)
    lengths = np.clip(np.exp(4.95 + 0.6 * random.standard_normal(count)), 40,
                      length).astype(np.int64)
    rows = []
    for tokens in lengths:
        ids = random.integers(0, vocabulary, tokens).astype(np.int32)
        labels = ids.copy()
        labels[:-(-6 * tokens // 10)] = -100
        rows.append((ids, labels))
    save_rows(path, rows)


def write_first_rows(path, rows_path):
    """Writes the first batch of a fine-tuning set, for evaluation."""
    save_rows(path, load_rows(rows_path)[:BATCH_ROWS])
