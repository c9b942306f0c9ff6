#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The peer of generate.py: llama.cpp, through llama-cpp-python.

    baseline_llama.py --model DIR --tokens N [--batch 1]

Writes the model as GGUF in f16, and quantized to q4_0 with the LM head and the
embeddings in f16, unless DIR has these files. Prints a line of JSON once the
model is loaded, then answers lines as baseline_generate.py does. --tokens: of
prompt and answer. There is no tokenizer. All rows of a batch are sequences of
one context. llama.cpp reads the file into memory, as we do (no mmap).
"""

import argparse
import ctypes
import json
import os
import sys
import time

import gguf
import llama_cpp
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "e2e"))
import safetensors_io  # noqa: E402

# Names of tensors in a layer; others have no layer.
IN_LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm"}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm",
          "lm_head": "output"}

# llama.cpp keeps a pointer to the function, so it must stay referenced.
SILENT = llama_cpp.llama_log_callback(lambda level, text, _: None)


def say(**values):
    print(json.dumps(values), flush=True)


def peak_bytes():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines
                    if line.startswith("VmHWM"))


def name_of(name):
    """Returns the GGUF name of a tensor."""
    name, kind = name.rsplit(".", 1)
    if name in OTHERS:
        return f"{OTHERS[name]}.{kind}"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{IN_LAYER[rest]}.{kind}"


def interleaved(weight, heads):
    """Returns the rows of a head in the order of llama.cpp's RoPE, which turns
    adjacent pairs."""
    return (weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2)
            .reshape(weight.shape))


def write_gguf(folder, path):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    if config["model_type"] != "llama":
        raise SystemExit("baseline_llama.py writes models of type llama")
    heads = config["num_attention_heads"]
    key_heads = config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path + ".part", "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    tensors = safetensors_io.load(os.path.join(folder, "model.safetensors"))
    for name, value in tensors.items():
        if value.dtype == np.uint16:  # bf16
            value = (value.astype(np.uint32) << 16).view(np.float32)
        if "q_proj" in name or "k_proj" in name:
            value = interleaved(value, heads if "q_proj" in name
                                else key_heads)
        writer.add_tensor(name_of(name), np.ascontiguousarray(
            value, np.float32 if value.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(path + ".part", path)


def quantize(source, target):
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    parameters.output_tensor_type = gguf.GGMLQuantizationType.F16
    parameters.token_embedding_type = gguf.GGMLQuantizationType.F16
    parameters.nthread = len(os.sched_getaffinity(0))
    if llama_cpp.llama_model_quantize(
            source.encode(), (target + ".part").encode(),
            ctypes.byref(parameters)):
        raise SystemExit(f"cannot quantize {source}")
    os.rename(target + ".part", target)


class Model:
    def __init__(self, path, rows, tokens):
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.use_mmap = False
        self.model = llama_cpp.llama_model_load_from_file(path.encode(),
                                                          parameters)
        threads = len(os.sched_getaffinity(0))
        context = llama_cpp.llama_context_default_params()
        # Sequences share the cells, each rounded up to a multiple of 256.
        context.n_ctx = rows * -(-tokens // 256) * 256
        context.n_seq_max = rows
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.model or not self.context:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, entries):
        """Runs tokens (token, position, row, whether it needs logits). Returns
        the likeliest next tokens."""
        batch = llama_cpp.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, row, needs) in enumerate(entries):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
            batch.logits[i] = needs
        if llama_cpp.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_batch_free(batch)
        return [int(np.argmax(np.ctypeslib.as_array(
            llama_cpp.llama_get_logits_ith(self.context, i),
            shape=(self.vocabulary,))))
            for i, entry in enumerate(entries) if entry[3]]

    def generate(self, prompts, new):
        llama_cpp.llama_memory_clear(
            llama_cpp.llama_get_memory(self.context), True)
        start = time.perf_counter()
        tokens = []
        for row, prompt in enumerate(prompts):
            tokens.append(self.decode([
                (token, at, row, at == len(prompt) - 1)
                for at, token in enumerate(prompt)]))
        first = time.perf_counter()
        for step in range(new - 1):
            following = self.decode([
                (answer[-1], len(prompts[row]) + step, row, True)
                for row, answer in enumerate(tokens)])
            for answer, token in zip(tokens, following):
                answer.append(token)
        return {"prefill_seconds": first - start,
                "decode_seconds": time.perf_counter() - first,
                "decoded": len(prompts) * (new - 1), "peak": peak_bytes(),
                "tokens": tokens}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    paths = [os.path.join(options.model, name)
             for name in ("model-f16.gguf", "model-q4_0.gguf")]
    llama_cpp.llama_log_set(SILENT, None)
    if not os.path.exists(paths[0]):
        write_gguf(options.model, paths[0])
    if not os.path.exists(paths[1]):
        quantize(*paths)
    if not os.environ.get("BASELINE_LLAMA_LOADS"):
        # Writing the files needs more memory than generating.
        os.environ["BASELINE_LLAMA_LOADS"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    model = Model(paths[1], options.batch, options.tokens)
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        say(**model.generate(request["prompts"], request["new"]))


if __name__ == "__main__":
    main()
