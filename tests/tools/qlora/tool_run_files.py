# SPDX-License-Identifier: MIT
"""Files of examples that a tool and qlora both train: in float32, without
dropout, in file order, and from the same first adapter."""

import json
import math
import os

import numpy as np
from safetensors.numpy import load_file, save_file

import example_files

RUNS = os.path.join(example_files.INPUTS, "tool_runs.json")
EXAMPLES = [
    ("axolotl", "examples/" + path) for path in (
        "archived/cerebras/qlora.yml", "archived/stablelm-2/1.6b/fft.yml",
        "archived/yi-34B-chat/qlora.yml", "llama-3/instruct-lora-8b.yml",
        "llama-3/lora-1b.yml", "llama-3/fft-8b.yaml", "gemma2/qlora.yml")
] + [("LLaMA-Factory", "examples/" + path) for path in (
    "extras/dft/qwen2_full_sft.yaml", "extras/loraplus/llama3_lora_sft.yaml",
    "train_full/qwen3_full_sft.yaml", "train_lora/qwen3_lora_dpo.yaml",
    "train_lora/qwen3_lora_sft.yaml")]
ROWS = 40
# Keys that both files have in place of the example's; None removes a key. The
# tools cannot run the others on a CPU in float32, or without the network.
KEYS = {
    "axolotl": {
        "bf16": False, "bfloat16": None, "tf32": False, "load_in_4bit": False,
        "load_in_8bit": False, "attn_implementation": "sdpa", "plugins": None,
        # The split for evaluations draws other rows.
        "curriculum_sampling": True, "shuffle_merged_datasets": False,
        "val_set_size": 0, "evals_per_epoch": None,
        "lora_mlp_kernel": False, "lora_qkv_kernel": False,
        "lora_o_kernel": False, "dataset_prepared_path": None,
        "flash_attn_rms_norm": None, "flash_attn_cross_entropy": None,
        # LlamaTokenizer would read the tiny tokenizer as SentencePiece's.
        "tokenizer_type": None},
    "LLaMA-Factory": {
        "bf16": False, "deepspeed": None, "plot_loss": None, "use_cpu": True,
        "preprocessing_num_workers": None, "dataloader_num_workers": None,
        "disable_shuffling": True}}


def target_names(keys):
    names = keys.get("lora_target") or keys.get("lora_target_modules") or "all"
    if keys.get("lora_target_linear"):
        names = "all"
    return names.split(",") if isinstance(names, str) else names


def write_adapter(folder, model, keys):
    """Writes a LoRA adapter whose values are waves of different lengths."""
    rank = keys.get("lora_r") or keys["lora_rank"]
    alpha = keys.get("lora_alpha") or 2 * rank
    names, found, tensors = target_names(keys), set(), {}
    weights = load_file(os.path.join(model, "model.safetensors"))
    for number, (name, weight) in enumerate(sorted(weights.items())):
        module, leaf = name.removesuffix(".weight"), name.split(".")[-2]
        if weight.ndim != 2 or (leaf not in names if names != ["all"] else
                                ".layers." not in name):
            continue
        rows, columns = weight.shape
        if "transformer.h." in module or module.startswith("h."):
            rows, columns = columns, rows  # Conv1D has [in, out]
            module = "transformer." + module.removeprefix("transformer.")
        found.add(leaf)
        for half, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            wave = np.sin(np.arange(math.prod(shape)) * (0.7 + 0.01 * number))
            tensors[f"base_model.model.{module}.lora_{half}.weight"] = (
                0.1 * wave.reshape(shape)).astype(np.float32)
    os.makedirs(folder)
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"),
              {"format": "pt"})
    example_files.write(os.path.join(folder, "adapter_config.json"), {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank,
        "lora_alpha": alpha, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(found), "inference_mode": False,
        "fan_in_fan_out": any("transformer.h" in name for name in tensors)})


def to_float32(model):
    """Stores a model's weights as float32."""
    path = os.path.join(model, "model.safetensors")
    with open(path, "rb") as file:
        data = file.read()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = (start + offset for offset in entry["data_offsets"])
        values = data[begin:end]
        tensors[name] = (
            np.frombuffer(values, "<f4") if entry["dtype"] == "F32" else
            (np.frombuffer(values, "<u2").astype("<u4") << 16).view("<f4")
        ).reshape(entry["shape"])
    save_file(tensors, path, {"format": "pt"})
    path = os.path.join(model, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.pop("torch_dtype", None)
    example_files.write(path, {**config, "dtype": "float32"})


class Files(example_files.Folder):
    def make_model(self, *arguments):
        name = super().make_model(*arguments)
        to_float32(self.path(name))
        return name

    def write(self, example, name="train.yaml"):
        keys = {key: value for key, value in example["keys"].items()
                if not key.startswith(("wandb", "swanlab", "use_swanlab"))}
        keys.update(KEYS[example["tool"]])
        if keys.get("adapter"):
            keys.update(adapter="lora", lora_model_dir="first",
                        lora_dropout=0.0)
        else:
            for key in [key for key in keys if key.startswith("lora_")
                        and key.endswith("kernel")]:
                del keys[key]
        if keys.get("finetuning_type") == "lora":
            keys.update(adapter_name_or_path="first", lora_dropout=0.0)
        if example["family"] == "GPT2LMHeadModel":
            keys["sequence_len"] = 64  # positions of the tiny model
        if example["family"] == "Gemma2ForCausalLM":
            keys["attn_implementation"] = "eager"  # sdpa has no soft cap
        keys["logging_steps"] = 1
        keys = {key: value for key, value in keys.items() if value is not None}
        if keys.get("lora_model_dir") or keys.get("adapter_name_or_path"):
            write_adapter(self.path("first"),
                          self.path(self.model({**example, "keys": keys})),
                          keys)
        return super().write({**example, "keys": keys}, name)


def chosen():
    """Returns the examples of EXAMPLES, and the tools' files."""
    table = example_files.load()
    found = {(each["tool"], each["path"]): each for each in table["examples"]}
    return [found[name] for name in EXAMPLES], table["tools"]
