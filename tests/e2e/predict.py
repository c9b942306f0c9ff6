#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The prediction of a step matches the formulas of a roofline model within 2 %.

    predict.py --tools build/bin

Compiles a Llama of made-up shape for a GPU. This needs no GPU, no weights and
no CUDA compiler, because the device code is never read. Compares the output of
`qlora-run --simulate h200` with formulas:

  FLOPs    of GEMMs and of attention
  bytes    of decodes and of LoRA's GEMMs ("thin GEMM")
  seconds  of GEMMs and of attention, from their FLOPs and the assumed rates

The usual count is 2 P FLOPs per token forward and 2 P backward. The program
computes less: the first layer needs no input gradient, so the backward of its
q, k and v and their LoRA has no GEMM for this gradient.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from safetensors_io import save_sparse

BATCH, LENGTH, RANK, MICRO_BATCHES = 2, 1024, 16, 2
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, DIM, VOCAB = (
    6, 1536, 4096, 12, 4, 128, 16384)
TOKENS = BATCH * LENGTH
WIDE, NARROW = HEADS * DIM, KV_HEADS * DIM
# Groups of linears with the same input: (input width, output widths).
QKV = (HIDDEN, (WIDE, NARROW, NARROW))
GROUPS = (QKV, (WIDE, (HIDDEN,)), (HIDDEN, (INNER, INNER)), (INNER, (HIDDEN,)))
WEIGHTS = LAYERS * sum(width * sum(outputs) for width, outputs in GROUPS)
FIRST = HIDDEN * sum(QKV[1])
TOLERANCE = 0.02


def tensors():
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN),
              "model.norm.weight": (HIDDEN,),
              "lm_head.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        linears = {"self_attn.q_proj": (WIDE, HIDDEN),
                   "self_attn.k_proj": (NARROW, HIDDEN),
                   "self_attn.v_proj": (NARROW, HIDDEN),
                   "self_attn.o_proj": (HIDDEN, WIDE),
                   "mlp.gate_proj": (INNER, HIDDEN),
                   "mlp.up_proj": (INNER, HIDDEN),
                   "mlp.down_proj": (HIDDEN, INNER),
                   "input_layernorm": (HIDDEN,),
                   "post_attention_layernorm": (HIDDEN,)}
        for name, shape in linears.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes


def write_model(folder):
    os.makedirs(folder)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "hidden_size": HIDDEN, "intermediate_size": INNER,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
              "rope_theta": 5e5, "tie_word_embeddings": False,
              "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)
    save_sparse(f"{folder}/model.safetensors", tensors())


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(command)}\n{done.stderr[-1500:]}")
    return done.stdout


def compile_model(tools, folder):
    """Compiles for one GPU, with a fake CUDA compiler whose output is one
    line."""
    write_model(f"{folder}/model")
    compiler = f"{folder}/no-nvcc"
    with open(compiler, "w") as file:
        file.write('#!/bin/sh\n'
                   'test "$1" = --version && echo "release 13.0, V13.0.0"\n'
                   'while test $# -gt 0; do\n'
                   '  test "$1" = -o && echo "no code" > "$2"\n'
                   '  shift\n'
                   'done\n'
                   'exit 0\n')
    os.chmod(compiler, 0o755)
    call(f"{tools}/qlora-import", f"{folder}/model", "-o", f"{folder}/m.mlir")
    call(f"{tools}/qloracc", f"{folder}/m.mlir", "-o", f"{folder}/t.so",
         "--target", "cuda", "--cuda-arch", "90", "--cuda-compiler", compiler,
         "--no-cache", "--device-profile", "h200", "--load-in-4bit",
         "--bnb-4bit-use-double-quant", "--lora-r", str(RANK),
         "--per-device-train-batch-size", str(BATCH), "--max-length",
         str(LENGTH))
    return f"{folder}/t.so"


def predict(tools, module, gpus):
    text = call(f"{tools}/qlora-run", module, "--simulate", "h200",
                "--gpus", str(gpus), "--gradient-accumulation-steps",
                str(MICRO_BATCHES), "--log-format", "json")
    report = json.loads(text)
    return report["predictions"][0], report["assumed"]


def lora_flops():
    """Returns the FLOPs of XA and (XA)B forward, and of dY B, dB, dA and dX
    backward, except the first dX."""
    sides = LAYERS * sum(width * len(outputs) + sum(outputs)
                         for width, outputs in GROUPS)
    return 2 * TOKENS * RANK * (3 * sides - QKV[0] * len(QKV[1]))


def gemm_flops():
    base = 2 * TOKENS * (2 * WEIGHTS - FIRST)
    head = 2 * 2 * TOKENS * VOCAB * HIDDEN
    return base + head + lora_flops()


def attention_flops():
    """Returns the FLOPs of two GEMMs forward and five backward, of half of T x
    T pairs."""
    forward = 4 * TOKENS * HEADS * DIM * (LENGTH + 1) / 2
    return LAYERS * 3.5 * forward


def decode_bytes():
    """Returns the bytes of decoding each weight in the forward and in the
    backward: reads 4 bits and a double-quantized scale per 64 values, writes 2
    bytes."""
    stored = 1 / 2 + (1 + 4 / 256) / 64
    return (2 * WEIGHTS - FIRST) * (stored + 2)


def lora_bytes():
    """Returns the bytes of LoRA's GEMMs: activations in bf16, once for each
    GEMM that reads or writes them, adapters in bf16 and their gradients in
    f32."""
    total = 0
    for layer in range(LAYERS):
        for width, outputs in GROUPS:
            count, out = len(outputs), sum(outputs)
            is_first = layer == 0 and (width, outputs) == QKV
            # X is read for XA and for dA, dY for dXA and for dB. (XA)B is
            # written (the base's GEMM adds to it), and so is LoRA's term of dX.
            wide = 2 * TOKENS * (width + out + 2 * out + width)
            if not is_first:
                wide += 2 * TOKENS * width
            # XA is written and read twice (for (XA)B and dB), and so is dXA
            # (for dX and dA).
            thin = 2 * TOKENS * RANK * count * 6
            # Two GEMMs read each of A and B in bf16; the update rounds them to
            # bf16. dA and dB are accumulated in f32.
            sides = RANK * (width * count + out)
            weights = sides * 2 * 2 + sides * 8
            total += wide + thin + weights
    return total


def check(name, found, wanted):
    error = found / wanted - 1
    print(f"{'ok  ' if abs(error) <= TOLERANCE else 'FAIL'} {name}: "
          f"{found:.4g}, by formula {wanted:.4g}, {error:+.2%}")
    return abs(error) <= TOLERANCE


def check_counts(one):
    parts, total = one["parts"], one["total"]
    return all([
        check("GEMM FLOPs", total["gemm_flops"],
              MICRO_BATCHES * gemm_flops()),
        check("attention FLOPs", total["attention_flops"],
              MICRO_BATCHES * attention_flops()),
        check("decode bytes", parts["decode"]["bytes"],
              MICRO_BATCHES * decode_bytes()),
        check("LoRA bytes", parts["thin GEMM"]["bytes"],
              MICRO_BATCHES * lora_bytes())])


def attention_seconds(rates):
    """Returns the seconds of cuDNN's attention. Each token of a causal row of T
    tokens attends to (T + 1) / 2 keys on average. A GEMM takes a + b / keys per
    FLOP, with a and b from the measured rates for 2,048 and 8,192 tokens."""
    keys, short, long = ((length + 1) / 2 for length in (LENGTH, 2048, 8192))
    forward = attention_flops() / 3.5
    total = 0
    for direction, share in (("forward", 1), ("backward", 2.5)):
        at_short, at_long = (1e-9 / rates[f"{direction}_{size}_gflops"]
                             for size in ("2k", "8k"))
        slope = (at_short - at_long) / (1 / short - 1 / long)
        total += share * forward * (at_long + slope * (1 / keys - 1 / long))
    return total


def check_low(one):
    """Checks the pessimistic estimate, which has no overlap and lower rates."""
    low, parts = one["low"], one["low"]["parts"]
    summed = sum(part["seconds"] for part in parts.values())
    factors = {"GEMM": 0.9, "attention": 0.9, "decode": 0.85,
               "thin GEMM": 0.85, "element-wise": 0.85}
    return all([
        check("low: seconds", low["step_seconds"],
              summed + low["launch_seconds"]),
        *(check(f"low: {name} seconds", parts[name]["seconds"],
                one["parts"][name]["seconds"] / factor)
          for name, factor in factors.items())])


def check_rows(one):
    wanted = {"attention.cudnn", "attention_grad.cudnn", "matmul.cublaslt",
              "head_loss_grad.cuda"}
    found = set(one["assumed_kernels"])
    print(f"{'ok  ' if wanted <= found else 'FAIL'} kernels: "
          f"{', '.join(sorted(found))}")
    return wanted <= found


def check_seconds(one, many, rates):
    """Checks that the parts of a step add up, and that GEMMs have the given
    rates."""
    parts = one["parts"]
    summed = sum(part["seconds"] for part in parts.values())
    gemm = parts["GEMM"]
    sent = sum(c["bytes"] for c in many["collectives"])
    adapters = LAYERS * RANK * 4 * sum(
        width * len(outputs) + sum(outputs) for width, outputs in GROUPS)
    return all([
        check("seconds", one["step_seconds"],
              summed + one["launch_seconds"] - one["overlapped_seconds"]),
        check("GEMM seconds", gemm["seconds"],
              gemm["gemm_flops"] / (rates["gemm_bf16_gflops"] * 1e9)),
        check("attention seconds", parts["attention"]["seconds"],
              MICRO_BATCHES *
              attention_seconds(rates["gpu"]["attention_cudnn"])),
        check("64 ranks", many["step_seconds"],
              one["step_seconds"] + many["exposed_communication_seconds"]),
        check("bytes sent", sent, adapters)])


def check_cards(tools, module, rates, folder):
    """Checks predictions for given GPUs, with a plan whose weights alone take
    some 80 MB."""
    passed = True
    for gigabytes, answer in ((0.01, "the base alone does not fit one GPU"),
                              (0.2, "does not fit. Fix: compile with --mem"),
                              (80, "of the GPU's 80 GB\n")):
        card = f"{folder}/card.json"
        with open(card, "w") as file:
            json.dump({**rates, "gpu": {**rates["gpu"],
                                        "memory_gb": gigabytes}}, file)
        text = call(f"{tools}/qlora-run", module, "--simulate", card)
        print(f"{'ok  ' if answer in text else 'FAIL'} a GPU of {gigabytes} "
              f"GB: {answer.strip()}")
        passed &= answer in text
    return passed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    with tempfile.TemporaryDirectory() as folder:
        module = compile_model(tools, folder)
        one, rates = predict(tools, module, 1)
        many, _ = predict(tools, module, 64)
        passed = [check_counts(one), check_seconds(one, many, rates),
                  check_low(one), check_rows(one),
                  check_cards(tools, module, rates, folder)]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
