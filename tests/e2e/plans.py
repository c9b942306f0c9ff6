#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Memory plans of shapes that no test machine trains.

    plans.py --tools build/bin

* Llama 8B, B = 2, T = 2048, r = 16, NF4 and double quantisation, fits into
  6.6 GiB of a card, with its input embedding in host memory;
* 24 GiB hold a context of 70,000 tokens at B = 1, r = 32;
* chunks of the head of 1,024 rows are the first that a limit takes;
* --memory-limit auto is what is free less a reserve, or one clear error.

The weights are a file of zeros without blocks on the disk. The null device
loads the modules and checks each command.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOST_NVCC = os.path.join(HERE, "..", "cuda", "host-nvcc")
GIB = 1 << 30
HIDDEN, WIDE, LAYERS, VOCABULARY, KV = 4096, 14336, 32, 128256, 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": HIDDEN, "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": VOCABULARY,
    "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
BASE = ("--target", "cuda", "--cuda-arch", "90", "--cuda-compiler", HOST_NVCC,
        "--load-in-4bit", "--bnb-4bit-use-double-quant")


def shapes():
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        for name, rows in (("q", HIDDEN), ("k", KV), ("v", KV), ("o", HIDDEN)):
            yield f"{block}.self_attn.{name}_proj.weight", (rows, HIDDEN)
        yield f"{block}.mlp.gate_proj.weight", (WIDE, HIDDEN)
        yield f"{block}.mlp.up_proj.weight", (WIDE, HIDDEN)
        yield f"{block}.mlp.down_proj.weight", (HIDDEN, WIDE)
        yield f"{block}.input_layernorm.weight", (HIDDEN,)
        yield f"{block}.post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def write_model(folder):
    header, end = {}, 0
    for name, shape in shapes():
        begin, end = end, end + 2 * shape[0] * (shape[1:] or (1,))[0]
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(CONFIG, file)


def call(*command, code=0, **environment):
    done = subprocess.run(command, capture_output=True, text=True,
                          env={**os.environ, **environment})
    assert done.returncode == code, (
        f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def fits(tools, folder, limit, *flags):
    """The report of a plan within `limit` GiB, as the null device has it."""
    module, path = (os.path.join(folder, name) for name in ("t.so", "r.json"))
    start = time.monotonic()
    call(f"{tools}/qloracc", os.path.join(folder, "m.mlir"), "-o", module,
         "--report", path, "--memory-limit", f"{limit}GiB", *BASE, *flags)
    seconds = time.monotonic() - start
    with open(path) as file:
        report = json.load(file)
    assert report["total_bytes"] <= limit * GIB, report["arenas"]
    text = call(f"{tools}/qlora-run", module, "--device", "null")
    total = float(re.search(r"^ +total +([\d.]+) GiB", text, re.M).group(1))
    assert abs(total - report["total_bytes"] / GIB) < 0.01, text
    print(f"ok   {' '.join(flags)}: {total} of {limit} GiB, compiled in "
          f"{seconds:.1f} s")
    return report, text


def tightest_8b(tools, folder):
    report, text = fits(tools, folder, 6.6, "--max-length", "2048",
                        "--per-device-train-batch-size", "2", "--lora-r", "16")
    assert report["arenas"]["host"] == 2 * VOCABULARY * HIDDEN
    assert re.search(r"host \(pinned\) +1002 MiB", text), text
    # A head of keys at a time: 39 MiB.
    assert re.search(r"^  kernels  .*attention\.cudnn, attention_grad\.cudnn",
                     text, re.M), text
    assert any(row["kernel"] == "attention_grad.cudnn"
               for row in report["select-kernels"]), report["select-kernels"]


def long_context(tools, folder):
    report, _ = fits(tools, folder, 24, "--max-length", "70000",
                     "--per-device-train-batch-size", "1", "--lora-r", "32")
    again = [op["times"]
             for op in report["rematerialize"]["steps"][0]["recomputed"]]
    assert max(again) == 2, "no op is computed again for two blocks"


def planned(tools, folder, *flags):
    """Bytes of a rank, rows of a chunk of the head, and launches, of a length
    that cuDNN's attention is not for: it would need as much as the head."""
    text = call(f"{tools}/qloracc", os.path.join(folder, "m.mlir"),
                "--emit=program", "--max-length", "2000",
                "--per-device-train-batch-size", "2", *BASE, *flags)
    arenas = re.findall(r"program\.arena +(\w+) bytes (\d+)", text)
    chunk = re.search(r"@head_loss_grad\.cuda\(.*constants \[.* (\d+), \d+, \d+\]", text)
    return (sum(int(size) for kind, size in arenas if kind != "host"),
            int(chunk.group(1)), text.count("program.launch"))


def head_chunks(tools, folder):
    whole, rows, launches = planned(tools, folder)
    assert rows == 1024, rows
    assert planned(tools, folder, "--memory-limit",
                   f"{whole}B") == (whole, rows, launches)
    least, rows, others = planned(tools, folder, "--memory-limit",
                                  f"{whole - 1}B")
    # Nothing is computed again; what is left holds weights that are decoded.
    assert rows == 256 and others <= launches, (rows, others, launches)
    assert least < whole, (least, whole)
    print(f"ok   chunks of the head: {whole} bytes, or {least}")


def auto_limit(tools, folder):
    platform = os.path.join(tools, "..", "cuda-platform")
    model = os.path.join(folder, "small.mlir")
    call(f"{tools}/qlora-import",
         os.path.join(HERE, "..", "Inputs", "goldens", "llama-nf4", "model"),
         "-o", model)
    command = (f"{tools}/qloracc", model, "--emit=program", "--max-length",
               "64", "--memory-limit", "auto")
    said = call(*command, "--target", "cuda", LD_LIBRARY_PATH=platform,
                QLORA_TEST_CUDA_DEVICES="sm_90:4096")
    assert re.search("^qloracc: note: memory limit: 3.00 GiB: .* has 4.00 of 4.00 GiB free, "
                     "less 1.00 GiB", said, re.M), said[:300]
    said = call(*command, "--target", "cuda", code=1,
                LD_LIBRARY_PATH=platform, QLORA_TEST_CUDA_DEVICES="sm_90:512")
    assert "give --memory-limit a number" in said, said
    said = call(*command, "--target", "cuda", code=1, LD_LIBRARY_PATH=platform,
                QLORA_TEST_CUDA_DEVICES="none")
    assert said.count("error:") == 1 and "such as 24GiB" in said, said
    assert "this machine has" in call(*command)
    print("ok   --memory-limit auto")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        call(f"{tools}/qlora-import", folder, "-o",
             os.path.join(folder, "m.mlir"))
        for check in (tightest_8b, long_context, head_chunks, auto_limit):
            try:
                check(tools, folder)
            except AssertionError as error:
                failures += 1
                print(f"FAIL {check.__name__}: {error}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
