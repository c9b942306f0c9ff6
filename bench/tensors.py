# SPDX-License-Identifier: MIT

"""Derives the tensors of a Hugging Face model from its config.json. Writes them
as safetensors files, sparse for the compiler, which reads only headers, or with
random values. Needs only the standard library.
"""

import array
import json
import os
import random
import struct
import time

# POSITIVE and NEGATIVE are the upper byte of a bf16: with any lower byte, its
# magnitude is 2^-7 to 2^-5. ONE is a whole bf16 with the value 1.
POSITIVE, NEGATIVE, ONE = 0x3C, 0xBC, b"\x80\x3f"
# Values in the random block that is repeated. The size is not a multiple of any
# row length, so no two rows of a matrix are equal.
BLOCK_NUMBERS = (1 << 25) + 39
WRITE_BYTES = 1 << 26


def head_size(config):
    return config.get("head_dim") or (config["hidden_size"]
                                      // config["num_attention_heads"])


def has_experts(config):
    return "num_experts" in config


def is_adapted(name, config):
    """True if a weight has a LoRA adapter: all linears have one, but in models
    with experts only the linears of attention."""
    return name.endswith("proj.weight") and (
        not has_experts(config) or ".self_attn." in name)


def mlp_linears(config):
    """Returns names and shapes of the linears of a layer's MLP, or of its
    router and experts."""
    hidden = config["hidden_size"]
    if not has_experts(config):
        paths, inner, linears = ["mlp"], config["intermediate_size"], {}
    else:
        count = config["num_experts"]
        paths = [f"mlp.experts.{expert}" for expert in range(count)]
        inner, linears = config["moe_intermediate_size"], {
            "mlp.gate": (count, hidden)}
    for path in paths:
        linears |= {f"{path}.gate_proj": (inner, hidden),
                    f"{path}.up_proj": (inner, hidden),
                    f"{path}.down_proj": (hidden, inner)}
    return linears


def layer_tensors(config):
    """Returns a dictionary: name of a layer's tensor, relative to the layer ->
    shape."""
    hidden = config["hidden_size"]
    wide = config["num_attention_heads"] * head_size(config)
    narrow = config["num_key_value_heads"] * head_size(config)
    linears = {"self_attn.q_proj": (wide, hidden),
               "self_attn.k_proj": (narrow, hidden),
               "self_attn.v_proj": (narrow, hidden),
               "self_attn.o_proj": (hidden, wide), **mlp_linears(config)}
    tensors = {}
    for name, size in linears.items():
        tensors[f"{name}.weight"] = size
        if config["model_type"] == "qwen2" and name.split(".")[1][0] in "qkv":
            tensors[f"{name}.bias"] = size[:1]
    if config["model_type"].startswith("qwen3"):
        for name in ("q_norm", "k_norm"):
            tensors[f"self_attn.{name}.weight"] = (head_size(config),)
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{name}.weight"] = (hidden,)
    return tensors


def tensor_shapes(config):
    """Returns Hugging Face's names and shapes of the model's tensors."""
    vocabulary = (config["vocab_size"], config["hidden_size"])
    tensors = {"model.embed_tokens.weight": vocabulary,
               "model.norm.weight": (config["hidden_size"],)}
    for layer in range(config["num_hidden_layers"]):
        for name, size in layer_tensors(config).items():
            tensors[f"model.layers.{layer}.{name}"] = size
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = vocabulary
    return tensors


def count(size):
    product = 1
    for length in size:
        product *= length
    return product


def file_head(shapes, dtype, width):
    """Returns the start of a safetensors file (length and header), and the
    number of data bytes after it."""
    header, offset = {}, 0
    for name, size in shapes.items():
        end = offset + width * count(size)
        header[name] = {"dtype": dtype, "shape": list(size),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offset


def model_bytes(config):
    head, data = file_head(tensor_shapes(config), "BF16", 2)
    return len(head) + data


def write_config(folder, config):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)


def write_sparse_model(folder, config):
    """Writes a folder with sparse weights, enough for qlora-import."""
    write_config(folder, config)
    head, data = file_head(tensor_shapes(config), "BF16", 2)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(head)
        file.truncate(len(head) + data)


def random_block(numbers, seed):
    """Returns bf16 values with a random lower byte and a random sign."""
    generator = random.Random(seed)
    signs = bytes([POSITIVE] * 128 + [NEGATIVE] * 128)
    block = bytearray(2 * numbers)
    block[0::2] = generator.randbytes(numbers)
    block[1::2] = generator.randbytes(numbers).translate(signs)
    return bytes(block)


class RepeatedBlock:
    """An endless repetition of one block."""

    def __init__(self, block):
        self.size, self.place = len(block), 0
        self.part = min(self.size, WRITE_BYTES)
        # Append the block's start, so that a write of up to `part` bytes can
        # begin anywhere in the block.
        self.bytes = memoryview(block + block[:self.part])

    def write_to(self, file, size):
        while size:
            part = min(size, self.part)
            file.write(self.bytes[self.place:self.place + part])
            self.place = (self.place + part) % self.size
            size -= part


def write_random_model(folder, config, seconds):
    """Writes a folder with random bf16 weights; norms are 1. The weight file
    gets its name when it is complete. Raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    write_config(folder, config)
    shapes = tensor_shapes(config)
    head, data = file_head(shapes, "BF16", 2)
    source = RepeatedBlock(random_block(min(BLOCK_NUMBERS, data), seed=0))
    path = os.path.join(folder, "model.safetensors")
    with open(path + ".part", "wb") as file:
        file.write(head)
        for name, size in shapes.items():
            if time.monotonic() > end:
                raise TimeoutError(f"{file.tell()} of {data} bytes in "
                                   f"{seconds:.0f} s")
            if name.endswith("norm.weight"):
                file.write(ONE * count(size))
            else:
                source.write_to(file, 2 * count(size))
    os.rename(path + ".part", path)


def write_tokens(path, vocabulary, micro_batches, batch, length):
    """Writes a token file of [micro_batches, batch, length] random ids, all
    labelled."""
    generator = random.Random(1)
    ids = array.array("i", (generator.randrange(vocabulary) for _ in
                            range(micro_batches * batch * length)))
    shape = (micro_batches, batch, length)
    head, _ = file_head({"input_ids": shape, "labels": shape}, "I32", 4)
    with open(path, "wb") as file:
        file.write(head + ids.tobytes() + ids.tobytes())
