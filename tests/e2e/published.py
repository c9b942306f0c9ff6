#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Published models, with their original config.json, imported and planned.

    published.py --tools build/bin [NAME ...]

The weights are a sparse file of zeros. Each model is imported without a
warning and compiled for a GPU with its base in 4 bits, experts too. The limit
is its 4-bit weights, its 16-bit embedding and head, and 4 GiB. Then the null
device loads it and checks every command.
"""

import argparse
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
HOST_NVCC = os.path.join(HERE, "..", "cuda", "host-nvcc")
GIB = 1 << 30
TOKENS = 512


def config(architecture, model_type, hidden, inner, layers, heads, keys, vocab,
           **more):
    """Returns the common keys of config.json, in the order of published
    files."""
    return {"architectures": [architecture], "attention_dropout": 0.0,
            "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
            "hidden_size": hidden, "initializer_range": 0.02,
            "intermediate_size": inner, "max_position_embeddings": 8192,
            "model_type": model_type, "num_attention_heads": heads,
            "num_hidden_layers": layers, "num_key_value_heads": keys,
            "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0", "use_cache": True,
            "vocab_size": vocab, **more}


LLAMA = ("LlamaForCausalLM", "llama")
GEMMA = {"attention_bias": False, "attn_logit_softcapping": None,
         "cache_implementation": "hybrid", "final_logit_softcapping": None,
         "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0,
         "rms_norm_eps": 1e-06, "tie_word_embeddings": True}
PHI = {"attention_bias": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
       "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
       "pad_token_id": 32000, "rope_scaling": None}


def gpt_oss(layers, experts):
    return config(
        "GptOssForCausalLM", "gpt_oss", 2880, 2880, layers, 64, 8, 201088,
        attention_bias=True, experts_per_token=4, head_dim=64,
        initial_context_length=4096,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        max_position_embeddings=131072, num_experts_per_tok=4,
        num_local_experts=experts, output_router_logits=False,
        pad_token_id=199999, quantization_config={
            "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router",
                "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
        rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                      "original_max_position_embeddings": 4096,
                      "rope_type": "yarn", "truncate": False},
        rope_theta=150000, router_aux_loss_coef=0.9, sliding_window=128,
        swiglu_limit=7.0)


MODELS = {
    "TinyLlama-1.1B": config(*LLAMA, 2048, 5632, 22, 32, 4, 32000,
                             attention_bias=False, pretraining_tp=1,
                             rope_scaling=None),
    "CodeLlama-7b": config(*LLAMA, 4096, 11008, 32, 32, 32, 32016,
                           max_position_embeddings=16384, pretraining_tp=1,
                           rope_scaling=None, rope_theta=1000000),
    "Llama-3.1-70B": config(
        *LLAMA, 8192, 28672, 80, 64, 8, 128256, attention_bias=False,
        max_position_embeddings=131072, mlp_bias=False, pretraining_tp=1,
        rope_scaling={"factor": 8.0, "low_freq_factor": 1.0,
                      "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 8192,
                      "rope_type": "llama3"}, rope_theta=500000.0),
    "Qwen2.5-32B": config(
        "Qwen2ForCausalLM", "qwen2", 5120, 27648, 64, 40, 8, 152064,
        max_position_embeddings=131072, max_window_layers=64,
        sliding_window=131072, use_sliding_window=False,
        rope_theta=1000000.0),
    "gemma-2-27b": config(
        "Gemma2ForCausalLM", "gemma2", 4608, 36864, 46, 32, 16, 256000,
        **{**GEMMA, "attn_logit_softcapping": 50.0,
           "final_logit_softcapping": 30.0, "head_dim": 128,
           "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 144,
           "sliding_window": 4096, "sliding_window_size": 4096,
           "_attn_implementation": "eager"}),
    "gemma-3-1b": config(
        "Gemma3ForCausalLM", "gemma3_text", 1152, 6912, 26, 4, 1, 262144,
        **{**GEMMA, "head_dim": 256, "max_position_embeddings": 32768,
           "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000,
           "rope_scaling": None, "rope_theta": 1000000,
           "sliding_window": 512, "sliding_window_pattern": 6}),
    "Phi-3-mini-4k": config(
        "Phi3ForCausalLM", "phi3", 3072, 8192, 32, 32, 32, 32064,
        max_position_embeddings=4096, original_max_position_embeddings=4096,
        sliding_window=2047, **PHI),
    "Phi-4-mini": config(
        "Phi3ForCausalLM", "phi3", 3072, 8192, 32, 24, 8, 200064,
        **{**PHI, "full_attn_mod": 1, "interpolate_factor": 1,
           "lm_head_bias": False, "max_position_embeddings": 131072,
           "mlp_bias": False, "original_max_position_embeddings": 4096,
           "partial_rotary_factor": 0.75, "pad_token_id": 199999,
           "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48,
                            "long_factor": [1 + i / 2 for i in range(48)]},
           "sliding_window": 262144, "tie_word_embeddings": True}),
    "OLMo-2-13B": config(
        "Olmo2ForCausalLM", "olmo2", 5120, 13824, 40, 40, 40, 100352,
        attention_bias=False, max_position_embeddings=4096, pad_token_id=100277,
        rms_norm_eps=1e-06, rope_scaling=None, rope_theta=500000),
    "granite-3.3-8b": config(
        "GraniteForCausalLM", "granite", 4096, 12800, 40, 32, 8, 49159,
        attention_bias=False, attention_multiplier=0.0078125,
        embedding_multiplier=12.0, logits_scaling=16.0,
        max_position_embeddings=131072, mlp_bias=False, pad_token_id=0,
        residual_multiplier=0.22, rope_scaling=None, rope_theta=10000000.0,
        tie_word_embeddings=True),
    "SmolLM3-3B": config(
        "SmolLM3ForCausalLM", "smollm3", 2048, 11008, 36, 16, 4, 128256,
        attention_bias=False, layer_types=["full_attention"] * 36,
        max_position_embeddings=65536, max_window_layers=28, mlp_bias=False,
        no_rope_layer_interval=4,
        no_rope_layers=[int((i + 1) % 4 != 0) for i in range(36)],
        pad_token_id=128004, pretraining_tp=2, rms_norm_eps=1e-06,
        rope_scaling=None, rope_theta=5000000.0, sliding_window=None,
        tie_word_embeddings=True, use_sliding_window=False),
    "gpt-oss-20b": gpt_oss(24, 32),
    "gpt-oss-120b": gpt_oss(36, 128),
    "Mixtral-8x7B": config(
        "MixtralForCausalLM", "mixtral", 4096, 14336, 32, 32, 8, 32000,
        max_position_embeddings=32768, num_experts_per_tok=2,
        num_local_experts=8, output_router_logits=False,
        rope_theta=1000000.0, router_aux_loss_coef=0.02, sliding_window=None),
    "Qwen3-30B-A3B": config(
        "Qwen3MoeForCausalLM", "qwen3_moe", 2048, 6144, 48, 32, 4, 151936,
        attention_bias=False, decoder_sparse_step=1, head_dim=128,
        max_position_embeddings=40960, max_window_layers=48,
        mlp_only_layers=[], moe_intermediate_size=768, norm_topk_prob=True,
        num_experts=128, num_experts_per_tok=8, output_router_logits=False,
        rms_norm_eps=1e-06, rope_scaling=None, rope_theta=1000000.0,
        router_aux_loss_coef=0.001, sliding_window=None,
        use_sliding_window=False),
}


def norms(kind):
    """Yields the names of a layer's norms."""
    names = ["post_attention_layernorm"]
    if kind != "olmo2":
        names.append("input_layernorm")
    if kind in ("gemma2", "gemma3_text"):
        names += ["pre_feedforward_layernorm"]
    if kind in ("gemma2", "gemma3_text", "olmo2"):
        names += ["post_feedforward_layernorm"]
    return names


def attention(c, kind):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    head = c.get("head_dim") or hidden // heads
    width, narrow = heads * head, c["num_key_value_heads"] * head
    if kind == "phi3":
        yield "qkv_proj.weight", (width + 2 * narrow, hidden)
    else:
        for name, rows in (("q", width), ("k", narrow), ("v", narrow)):
            yield f"{name}_proj.weight", (rows, hidden)
            if kind in ("qwen2", "gpt_oss"):
                yield f"{name}_proj.bias", (rows,)
    yield "o_proj.weight", (hidden, width)
    if kind == "gpt_oss":
        yield from (("o_proj.bias", (hidden,)), ("sinks", (heads,)))
    if kind == "olmo2":
        yield from (("q_norm.weight", (width,)), ("k_norm.weight", (narrow,)))
    if kind in ("gemma3_text", "qwen3_moe"):
        yield from (("q_norm.weight", (head,)), ("k_norm.weight", (head,)))


def mlp(c, kind):
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    if kind == "gpt_oss":
        count = c["num_local_experts"]
        yield "mlp.router.weight", (count, hidden)
        yield "mlp.router.bias", (count,)
        for name, rows, width in (("gate_up_proj", 2 * inner, hidden),
                                  ("down_proj", hidden, inner)):
            name = "mlp.experts." + name
            yield name + "_blocks", (count, rows, width // 32, 16)
            yield name + "_scales", (count, rows, width // 32)
            yield name + "_bias", (count, rows)
        return
    if kind == "phi3":
        yield "mlp.gate_up_proj.weight", (2 * inner, hidden)
        yield "mlp.down_proj.weight", (hidden, inner)
        return
    prefixes, names = ["mlp."], ("gate_proj", "up_proj", "down_proj")
    if kind == "mixtral":
        count, names = c["num_local_experts"], ("w1", "w3", "w2")
        prefixes = [f"block_sparse_moe.experts.{e}." for e in range(count)]
        yield "block_sparse_moe.gate.weight", (count, hidden)
    if kind == "qwen3_moe":
        count, inner = c["num_experts"], c["moe_intermediate_size"]
        prefixes = [f"mlp.experts.{e}." for e in range(count)]
        yield "mlp.gate.weight", (count, hidden)
    for prefix in prefixes:
        yield f"{prefix}{names[0]}.weight", (inner, hidden)
        yield f"{prefix}{names[1]}.weight", (inner, hidden)
        yield f"{prefix}{names[2]}.weight", (hidden, inner)


def shapes(c):
    kind, hidden = c["model_type"], c["hidden_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        for name, shape in attention(c, kind):
            yield f"{block}.self_attn.{name}", shape
        for name, shape in mlp(c, kind):
            yield f"{block}.{name}", shape
        for name in norms(kind):
            yield f"{block}.{name}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def is_packed(name):
    return name.endswith(("_blocks", "_scales"))


def write_model(c, folder):
    header, end = {}, 0
    for name, shape in shapes(c):
        begin, end = end, end + math.prod(shape) * (2 - is_packed(name))
        header[name] = {"dtype": "U8" if is_packed(name) else "BF16",
                        "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(c, file)


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def room(c):
    """Returns the memory limit in bytes, the sum of

    matmul weights in layers  4 bits and double-quantized scales
    MXFP4 experts             as stored, plus 4 bytes per 256 scales
    other tensors             16 bits
    adapters, activations     4 GiB
    """
    bits = 4 + 8 / 64 + 32 / (64 * 256)
    bytes_of = {True: 0, False: 0}
    for name, shape in shapes(c):
        size = math.prod(shape)
        is_matrix = "layers" in name and len(shape) == 2
        bytes_of[is_packed(name)] += size * (bits / 8 if is_matrix else
                                             1 if is_packed(name) else 2)
    return bytes_of[True] * 1.001 + bytes_of[False] + 4 * GIB


def check(name, tools, work):
    c = MODELS[name]
    write_model(c, work)
    model, module = os.path.join(work, "m.mlir"), os.path.join(work, "t.so")
    said = call(f"{tools}/qlora-import", work, "-o", model)
    assert "warning" not in said, f"{name}: {said}"
    is_sparse = "num_experts_per_tok" in c
    is_stored = "quantization_config" in c
    call(f"{tools}/qloracc", model, "-o", module, "--target", "cuda",
         "--cuda-arch", "90", "--cuda-compiler", HOST_NVCC, "--load-in-4bit",
         "--bnb-4bit-use-double-quant", "--max-length", str(TOKENS),
         "--per-device-train-batch-size", "1", "--compute-dtype", "bfloat16",
         "--memory-limit", f"{int(room(c))}B",
         *(["--quantize-moe-experts"] if is_sparse and not is_stored else []),
         *(["--lora-target-modules", "q_proj",
            "k_proj", "v_proj", "o_proj"] if is_sparse else []))
    said = call(f"{tools}/qlora-run", module, "--simulate", "h200")
    found = re.search(r"^ +total +([\d.]+) GiB", said, re.M)
    assert found, said
    assert float(found[1]) * GIB < 1.01 * room(c), said
    return found[1], room(c) / GIB


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    for name in options.names or MODELS:
        with tempfile.TemporaryDirectory() as work:
            planned, most = check(name, os.path.abspath(options.tools), work)
        print(f"ok   {name}: {planned} of {most:.1f} GiB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
