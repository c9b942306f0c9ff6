#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_model.py FOLDER: makes a tiny model in the format of Qwen3.

The weights are those of the demo's Llama. Qwen3 also normalises each head of q
and k; these norms get one constant weight. The tokenizer's special tokens get
Qwen3's names.
"""
import json
import os
import struct
import sys

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                    "..", "demo", "model")
# Weight of the q and k norms. Vectors q and k of a head have length 8 *
# HEAD_NORM, which determines how peaked the attention is.
HEAD_NORM = 2.0
NAMES = {"<|pad|>": "<|endoftext|>", "<|end|>": "<|im_end|>",
         "<|user|>": "<|im_start|>", "<|assistant|>": "<think>",
         "<|system|>": "</think>"}


def read(name):
    with open(os.path.join(DEMO, name), encoding="utf-8") as file:
        return json.load(file)


def read_tensors():
    """Returns {name: (shape, bytes)}; all tensors are bf16."""
    with open(os.path.join(DEMO, "model.safetensors"), "rb") as file:
        data = file.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return {name: (tensor["shape"], data[begin + tensor["data_offsets"][0]:
                                         begin + tensor["data_offsets"][1]])
            for name, tensor in header.items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for _, data in tensors.values())


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    config = read("config.json")
    config.update(model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    tensors = read_tensors()
    size = config["head_dim"]
    # A bf16 is the upper half of a float32.
    norm = struct.pack("<f", HEAD_NORM)[2:] * size
    for layer in range(config["num_hidden_layers"]):
        for name in ("q_norm", "k_norm"):
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = (
                [size], norm)
    write_tensors(os.path.join(folder, "model.safetensors"), tensors)

    tokenizer = read("tokenizer.json")
    for token in tokenizer["added_tokens"]:
        token["content"] = NAMES.get(token["content"], token["content"])
    tokenizer["model"]["vocab"] = {
        NAMES.get(text, text): number
        for text, number in tokenizer["model"]["vocab"].items()}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer),
                        ("tokenizer_config.json", settings)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)


if __name__ == "__main__":
    main()
