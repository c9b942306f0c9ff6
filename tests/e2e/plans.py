#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Memory plans of shapes that no test machine can train.

    plans.py --tools build/bin [CHECK ...]

Each shape is compiled with a --memory-limit. B is the number of rows of a
micro-batch, T the length. Frozen bases are in NF4 with double quantization.

  model  GPUs        shape               plan
  8B     1, 6.6 GiB  B = 2, T = 2,048    input embedding in host memory
  8B     1, 24 GiB   B = 1, T = 70,000
  8B     1, 18 GiB   B = 1, T = 70,000   only with --offload activations
  8B     8, 24 GiB   B = 1, T = 131,072  cp
  8B     8, 24 GB    B = 1, T = 2,048    full fine-tuning with fsdp
  8B     8, 80 GB    B = 4, T = 2,048    full fine-tuning with fsdp
  70B    4, 24 GB    B = 1, T = 2,048    fsdp
  70B    2, 48 GB    B = 1, T = 2,048    fsdp
  70B    4, 24 GB    B = 4, T = 2,048    pp
  70B    1, 24 GB    B = 1, T = 512      --offload base
  70B    2, 24 GB    B = 1, T = 512      --offload base with fsdp

Also checks:

* A program that only generates holds 8 rows of 32,768 tokens of the 8B: the
  base, and 4 GiB of keys and values per row. It is predicted on an H200.
* With cp and fsdp, H200s wait for other ranks in less than 3 % of a step.
* Offloaded activations cost an H100 no waiting.
* With an offloaded base, GPU memory is full. A step takes about as long as its
  copies over the bus and its gathers.
* A rank of N holds 1/N of what fsdp shards. Gathered weights are at most a
  layer and two MLP weights.
* The 70B without fsdp on one GPU is refused, with a fix.
* A memory limit first reduces the LM head's chunks from 1,024 to 256 rows.
* --memory-limit auto is the free memory less a reserve, or one clear error.
* --parallel auto chooses the layout that fits with the fastest predicted step.
  If no layout fits, it names the smallest plan.

The weights are a sparse file of zeros. The null device loads the modules and
checks each command.
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
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOST_NVCC = os.path.join(HERE, "..", "cuda", "host-nvcc")
GIB = 1 << 30
HIDDEN, WIDE, LAYERS, VOCABULARY, KV = 4096, 14336, 32, 128256, 1024


def config(hidden=HIDDEN, wide=WIDE, layers=LAYERS):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": hidden, "intermediate_size": wide,
        "num_hidden_layers": layers, "num_attention_heads": hidden // 128,
        "num_key_value_heads": 8, "vocab_size": VOCABULARY,
        "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"}


BASE = ("--target", "cuda", "--cuda-arch", "90", "--cuda-compiler", HOST_NVCC,
        "--load-in-4bit", "--bnb-4bit-use-double-quant")


def shapes(hidden=HIDDEN, wide=WIDE, layers=LAYERS):
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    for layer in range(layers):
        block = f"model.layers.{layer}"
        for name, rows in (("q", hidden), ("k", KV), ("v", KV), ("o", hidden)):
            yield f"{block}.self_attn.{name}_proj.weight", (rows, hidden)
        yield f"{block}.mlp.gate_proj.weight", (wide, hidden)
        yield f"{block}.mlp.up_proj.weight", (wide, hidden)
        yield f"{block}.mlp.down_proj.weight", (hidden, wide)
        yield f"{block}.input_layernorm.weight", (hidden,)
        yield f"{block}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (VOCABULARY, hidden)


def write_model(folder, *size):
    header, end = {}, 0
    for name, shape in shapes(*size):
        begin, end = end, end + 2 * shape[0] * (shape[1:] or (1,))[0]
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config(*size), file)


def call(*command, code=0, **environment):
    done = subprocess.run(command, capture_output=True, text=True,
                          env={**os.environ, **environment})
    assert done.returncode == code, (
        f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def read(path):
    with open(path) as file:
        return json.load(file)


def fits(tools, folder, limit, *flags):
    """Returns the reports of a plan within `limit` GiB and of its null run."""
    module, path = (os.path.join(folder, name) for name in ("t.so", "r.json"))
    start = time.monotonic()
    call(f"{tools}/qloracc", "--target=cpu",
         os.path.join(folder, "m.mlir"), "-o", module,
         "--plan-report", path, "--memory-limit", f"{limit}GiB", *BASE, *flags)
    seconds = time.monotonic() - start
    report = read(path)
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
    # The workspace of attention_grad.cudnn holds one key head at a time: 39
    # MiB.
    assert re.search(r"^  kernels  .*attention\.cudnn, attention_grad\.cudnn",
                     text, re.M), text
    assert any(row["kernel"] == "attention_grad.cudnn"
               for row in report["select-kernels"]), report["select-kernels"]


def long_context(tools, folder):
    report, _ = fits(tools, folder, 24, "--max-length", "70000",
                     "--per-device-train-batch-size", "1", "--lora-r", "32")
    again = [op["times"]
             for op in report["rematerialize"]["steps"][0]["recomputed"]]
    assert max(again) == 2, "no op is recomputed for two blocks"


def generation(tools, folder):
    """An 8B that answers 8 rows of 32,768 tokens."""
    module, path = (os.path.join(folder, name) for name in ("g.so", "g.json"))
    rows, length = 8, 32768
    call(f"{tools}/qloracc", os.path.join(folder, "m.mlir"), "-o", module,
         "--plan-report", path, "--entries", "generate", "--generation-batch",
         str(rows), "--generation-length", str(length), "--max-loras", "2",
         "--max-lora-rank", "16", *BASE)
    arenas = read(path)["arenas"]
    assert arenas["cache"] == 2 * LAYERS * rows * length * KV * 2, arenas
    assert arenas["activation"] < GIB, arenas
    text = call(f"{tools}/qlora-run", module, "--device", "null")
    assert "decode 8 x 1" in text and "a step of" not in text, text
    said = json.loads(call(f"{tools}/qlora-run", module, "--simulate", "h200",
                           "--log-format", "json"))
    steps = {step["entry"]: step for step in said["predictions"]}
    assert list(steps) == ["prefill", "decode"], list(steps)
    decode = steps["decode"]
    assert (decode["batch"], decode["length"]) == (rows, 1), decode
    # A decode reads the base once and half of the cache.
    least = arenas["frozen"] - 2 * VOCABULARY * HIDDEN + arenas["cache"] / 2
    assert decode["total"]["bytes"] > least, (decode["total"], least)
    text = call(f"{tools}/qlora-run", module, "--simulate", "h200")
    assert "predicted, not measured: a decode of 8 x 1 tokens on" in text, text
    print(f"ok   generation: plan {sum(arenas.values()) / GIB:.1f} GiB, "
          f"decode {decode['tokens_per_second']:.0f} tokens/s")


def saved_on_the_host(tools, folder):
    shape = ("--max-length", "70000", "--per-device-train-batch-size", "1",
             "--lora-r", "32")
    said = call(f"{tools}/qloracc", "--target=cpu",
                os.path.join(folder, "m.mlir"),
                "--emit=program", "--memory-limit", "18GiB", *BASE, *shape,
                code=1)
    assert "error: --memory-limit: the smallest plan needs" in said, said
    report, _ = fits(tools, folder, 18, "--offload", "activations", *shape)
    # Copies the inputs of all layers, except the first layer's (no gradient)
    # and the last layer's, which the backward needs immediately.
    crossing = (LAYERS - 2) * 2 * 70000 * HIDDEN
    assert report["arenas"]["saved"] == crossing, report["arenas"]
    said = json.loads(call(f"{tools}/qlora-run", os.path.join(folder, "t.so"),
                           "--simulate", "h100", "--log-format", "json"))
    step = said["predictions"][0]
    copies, = (of for of in step["collectives"] if of["group"] == "bus")
    assert copies["bytes"] == 2 * crossing, copies
    assert step["exposed_communication_seconds"] == 0, step


def planned(tools, folder, *flags):
    """Returns the bytes of a rank, the rows in a chunk of the head, and the
    launches. Uses a length that cuDNN's attention does not support, because its
    workspace would be as large as the head."""
    text = call(f"{tools}/qloracc", "--target=cpu",
                os.path.join(folder, "m.mlir"),
                "--emit=program", "--max-length", "2000",
                "--per-device-train-batch-size", "2", *BASE, *flags)
    arenas = re.findall(r"program\.arena +(\w+) bytes (\d+)", text)
    chunk = re.search(
        r"@head_loss_grad\.cuda\(.*constants \[.* (\d+), \d+, \d+\]", text)
    return (sum(int(size) for kind, size in arenas if kind != "host"),
            int(chunk.group(1)), text.count("program.launch"))


def head_chunks(tools, folder):
    whole, rows, launches = planned(tools, folder)
    assert rows == 1024, rows
    assert planned(tools, folder, "--memory-limit",
                   f"{whole}B") == (whole, rows, launches)
    least, rows, others = planned(tools, folder, "--memory-limit",
                                  f"{whole - 1}B")
    # Nothing is recomputed. Decoded weights use the remaining memory.
    assert rows == 256 and others <= launches, (rows, others, launches)
    assert least < whole, (least, whole)
    print(f"ok   chunks of the head: {whole} bytes, or {least}")


def auto_limit(tools, folder):
    platform = os.path.join(tools, "..", "cuda-platform")
    model = os.path.join(folder, "small.mlir")
    call(f"{tools}/qlora-import",
         os.path.join(HERE, "..", "Inputs", "goldens", "llama-nf4", "model"),
         "-o", model)
    command = (f"{tools}/qloracc", "--target=cpu",
               model, "--emit=program", "--max-length",
               "64", "--memory-limit", "auto")
    said = call(*command, "--target", "cuda", LD_LIBRARY_PATH=platform,
                QLORA_TEST_CUDA_DEVICES="sm_90:4096")
    assert re.search("^qloracc: note: memory limit: 3.00 GiB: .* has 4.00 of "
                     "4.00 GiB free, less 1.00 GiB", said, re.M), said[:300]
    said = call(*command, "--target", "cuda", code=1,
                LD_LIBRARY_PATH=platform, QLORA_TEST_CUDA_DEVICES="sm_90:512")
    assert "set --memory-limit to a number" in said, said
    said = call(*command, "--target", "cuda", code=1, LD_LIBRARY_PATH=platform,
                QLORA_TEST_CUDA_DEVICES="none")
    assert said.count("error:") == 1 and "such as 24GiB" in said, said
    assert "this machine has" in call(*command)
    print("ok   --memory-limit auto")


def auto(tools, folder, module, *flags, code=0):
    """Compiles with --parallel auto. Returns the output."""
    start = time.monotonic()
    said = call(f"{tools}/qloracc", "--target=cpu",
                os.path.join(folder, "m.mlir"), "-o",
                module, "--parallel", "auto", "--device-profile", "h200", *BASE,
                "--max-length", "2048", "--lora-r", "16",
                "--per-device-train-batch-size", "1", *flags, code=code)
    print(f"ok   --parallel auto {' '.join(flags)}: "
          f"{time.monotonic() - start:.1f} s")
    return said


def waiting(tools, module, cards):
    """Checks that a step on H200s waits little for other ranks."""
    said = json.loads(call(
        f"{tools}/qlora-run", module, "--simulate", "h200", "--gpus",
        str(cards), "--log-format", "json"))
    step = said["predictions"][0]
    waits = step["exposed_communication_seconds"] / step["step_seconds"]
    assert waits < 0.03, (waits, step["collectives"])
    return waits


def shared_context(tools, folder):
    module, path = (os.path.join(folder, name) for name in ("t.so", "r.json"))
    call(f"{tools}/qloracc", "--target=cpu",
         os.path.join(folder, "m.mlir"), "-o", module,
         "--plan-report", path, "--memory-limit", "24GiB", "--parallel", "cp=8",
         "--max-length", "131072", "--per-device-train-batch-size", "1",
         "--lora-r", "16", *BASE)
    report = read(path)
    assert report["total_bytes"] <= 24 * GIB, report["arenas"]
    waits = waiting(tools, module, 8)
    print(f"ok   131,072 tokens on 8 GPUs: {report['total_bytes'] / GIB:.1f} "
          f"of 24 GiB; on H200s {100 * waits:.2f} % of a step waits")


def in_stages(tools, folder):
    """Plans four stages on four GPUs, with four rows at a time."""
    module, path = (os.path.join(folder, name) for name in ("p.so", "p.json"))
    call(f"{tools}/qloracc", "--target=cpu",
         os.path.join(folder, "m.mlir"), "-o", module,
         "--plan-report", path, "--memory-limit", "24GB", "--parallel", "pp=4",
         "--max-length", "2048", "--per-device-train-batch-size", "4",
         "--lora-r", "16", *BASE)
    bases = []
    for stage in ("p.json", "p.stage1.json", "p.stage2.json", "p.stage3.json"):
        report = read(os.path.join(folder, stage))
        assert report["total_bytes"] <= 24e9, report["arenas"]
        bases.append(report["arenas"]["frozen"])
    call(f"{tools}/qlora-run", module, "--simulate", "h200", "--gpus", "4")
    print(f"ok   70B on 4 GPUs of 24 GB as stages: "
          f"{', '.join(f'{base / 1e9:.1f}' for base in bases)} GB of the base")


def on_the_host(tools, folder, whole, ranks):
    """Plans GPUs of 24 GB with the base in host memory, except what fits.
    Several GPUs have their fsdp shards there."""
    module, path = (os.path.join(folder, name) for name in ("h.so", "h.json"))
    start = time.monotonic()
    call(f"{tools}/qloracc", "--target=cpu",
         os.path.join(folder, "m.mlir"), "-o", module,
         "--report", path, "--memory-limit", "24GB", "--offload", "base",
         "--host-memory-limit", f"{int(1.01 * whole / ranks)}B", "--max-length",
         "512", "--per-device-train-batch-size", "1", "--lora-r", "16", *BASE,
         "--parallel", f"fsdp={ranks}")
    seconds = time.monotonic() - start
    report = read(path)
    assert 23e9 < report["total_bytes"] <= 24e9, report["arenas"]
    part, moved = whole / ranks, report["host_bytes"]
    assert (0.99 * part < moved + report["arenas"]["frozen"]
            < 1.01 * part), report["arenas"]
    said = json.loads(call(f"{tools}/qlora-run", module, "--simulate",
                           "h100", "--gpus", str(ranks), "--log-format",
                           "json"))
    step = said["predictions"][0]
    copies, = (of for of in step["collectives"] if of["group"] == "bus")
    # A step copies each weight from the host twice, for the forward and for the
    # backward. But it copies the LM head once, and only rows of the embedding.
    # It takes about as long as the copies, which overlap with computation.
    assert 1.8 * moved < copies["bytes"] < 2.01 * moved, copies
    travel = sum(of["seconds"] for of in step["collectives"])
    assert step["step_seconds"] < 1.1 * travel, step
    print(f"ok   70B on {ranks} of 24 GB: {report['total_bytes'] / 1e9:.1f} "
          f"GB, and {report['host_bytes'] / 1e9:.1f} on the host, compiled in "
          f"{seconds:.1f} s; on an H100 a step of 512 tokens takes "
          f"{step['step_seconds']:.2f} s, {copies['seconds']:.2f} of copies")


def in_pieces(tools, folder):
    size = hidden, wide, layers = 8192, 28672, 80
    large = os.path.join(folder, "70b")
    os.makedirs(large)
    write_model(large, *size)
    call(f"{tools}/qlora-import", large, "-o", os.path.join(large, "m.mlir"))
    shape = ("--max-length", "2048", "--per-device-train-batch-size", "1",
             "--lora-r", "16", *BASE)
    layer = 2 * hidden * (hidden + KV) + 3 * hidden * wide
    bits = 0.516  # bytes of a 4-bit weight and its scales
    whole = layers * layer * bits + 4 * VOCABULARY * hidden
    for cards, limit in ((4, 24e9), (2, 48e9)):
        module, path = (os.path.join(large, name) for name
                        in ("t.so", "r.json"))
        call(f"{tools}/qloracc", "--target=cpu",
             os.path.join(large, "m.mlir"), "-o", module,
             "--plan-report", path, "--memory-limit", f"{int(limit)}B",
             "--parallel", f"fsdp={cards}", *shape)
        report = read(path)
        arenas = report["arenas"]
        assert report["total_bytes"] <= limit, arenas
        assert arenas["frozen"] < 1.01 * whole / cards + (8 << 20), arenas
        most = max(entry["peak"].get("gathered", 0)
                   for entry in report["entries"] if "peak" in entry)
        assert most < (layer + 2 * hidden * wide) * bits * 1.03, most
        waits = waiting(tools, module, cards)
        print(f"ok   70B on {cards} GPUs of {limit / 1e9:.0f} GB: "
              f"{report['total_bytes'] / 1e9:.1f} GB, of which "
              f"{arenas['frozen'] / 1e9:.1f} of the base and {most / 1e9:.2f} "
              f"gathered; on H200s {100 * waits:.2f} % of a step waits")
    in_stages(tools, large)
    for cards in (1, 2):
        on_the_host(tools, large, whole, cards)
    said = call(f"{tools}/qloracc", "--target=cpu",
                os.path.join(large, "m.mlir"), "-o", module,
                "--memory-limit", "24GB", *shape, code=1)
    assert "--parallel fsdp=N shards it over N ranks" in said, said
    said = auto(tools, large, module, "--ranks", "2", "--memory-limit", "36GB",
                "--emit=adapt")
    assert re.search(r"data parallel .* exceeds the limit by 6\.", said), said
    assert re.search(r"fsdp=2[ ,].* chosen: ", said), said


def trained_whole(tools, folder):
    module, path = (os.path.join(folder, name) for name in ("t.so", "r.json"))
    target = [flag for flag in BASE if "4bit" not in flag and "bnb" not in flag]
    numbers = sum(math.prod(shape) for _, shape in shapes())
    for rows, limit in (("1", 24e9), ("4", 80e9)):
        call(f"{tools}/qloracc", "--target=cpu",
             os.path.join(folder, "m.mlir"), "-o", module,
             "--plan-report", path, "--memory-limit", f"{int(limit)}B",
             "--parallel", "fsdp=8", "--finetuning-type", "full",
             "--max-length", "2048",
             "--per-device-train-batch-size", rows, *target)
        report = read(path)
        arenas = report["arenas"]
        assert report["total_bytes"] <= limit, arenas
        own = sum(arenas[name] for name in ("trainable", "gradient", "state"))
        assert own < 16 * numbers / 8 + (8 << 20), (own, numbers)
        rounded = arenas.get("rounded", 0)
        assert rounded < 2 * numbers / 8 + (1 << 20), arenas
        print(f"ok   8B, full fine-tuning, 8 GPUs of {limit / 1e9:.0f} GB: "
              f"{report['total_bytes'] / 1e9:.1f} GB, {own / 1e9:.1f} of them "
              f"weights, gradients and states, {rounded / 1e9:.1f} weights in "
              f"bf16")
    waits = waiting(tools, module, 8)
    print(f"ok   on H200s {100 * waits:.2f} % of a step of four rows waits")


def layouts(tools, folder, module, *flags):
    """Returns the name of the chosen layout, and the properties of every layout
    by name."""
    path = f"{module}.json"
    auto(tools, folder, module, "--plan-report", path, *flags)
    rows = {row["layout"]: row for row in read(path)["layouts"]}
    chosen, = (name for name, row in rows.items() if row["chosen"])
    return chosen, rows


def chosen_layouts(tools, folder):
    module = os.path.join(folder, "auto.so")
    # auto chooses data parallelism: unsharded bases fit, and fsdp would use the
    # network.
    chosen, rows = layouts(tools, folder, module, "--ranks", "2",
                           "--gpus-per-node", "1", "--network", "100Gb")
    assert chosen == "none" and len(rows) == 4, rows
    assert all(row["fits"] for row in rows.values()), rows
    assert rows["fsdp=2"]["step_seconds"] > rows["none"]["step_seconds"], rows
    # The compiler's prediction equals the runtime's for the program.
    said = json.loads(call(
        f"{tools}/qlora-run", module, "--simulate", "h200", "--gpus", "2",
        "--gpus-per-node", "1", "--network", "100Gb", "--log-format",
        "json"))["predictions"][0]
    for key in ("step_seconds", "exposed_communication_seconds"):
        pair = said[key], rows["none"][key]
        assert math.isclose(*pair, rel_tol=1e-9), (key, pair)
    # Both layouts fit, but an unsharded base leaves less memory for
    # activations.
    chosen, rows = layouts(tools, folder, module, "--ranks", "2",
                           "--memory-limit", "8GiB")
    whole, pieces = rows["none"], rows["fsdp=2"]
    assert chosen.startswith("fsdp=2") and whole["fits"], rows
    assert whole["step_seconds"] > 1.05 * pieces["step_seconds"], rows
    said = auto(tools, folder, module, "--ranks", "2", "--memory-limit", "1GiB",
                code=1)
    assert re.search(r"zero1=2 .*; the smallest layout\n", said), said
    assert "error: --memory-limit: the smallest plan needs" in said, said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("names", nargs="*", metavar="CHECK")
    options = parser.parse_args()
    tools = os.path.abspath(options.tools)
    checks = {check.__name__: check for check in (
        tightest_8b, long_context, generation,
        saved_on_the_host, shared_context,
        head_chunks, auto_limit, in_pieces, trained_whole, chosen_layouts)}
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        call(f"{tools}/qlora-import", folder, "-o",
             os.path.join(folder, "m.mlir"))
        for name in options.names or checks:
            try:
                checks[name](tools, folder)
            except AssertionError as error:
                failures += 1
                print(f"FAIL {name}: {error}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
