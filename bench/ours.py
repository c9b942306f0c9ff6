# SPDX-License-Identifier: MIT

"""Runs our tools for the benchmarks."""

import json
import os
import subprocess
import time

from shapes import LENGTH, REPOSITORY

TOOLS = os.path.join(REPOSITORY, "build", "bin")


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")


def compile_module(folder, module, compute, *flags):
    """model folder -> module; the seconds that qloracc took."""
    call(f"{TOOLS}/qlora-import", folder, "-o", f"{folder}/m.mlir")
    start = time.perf_counter()
    call(f"{TOOLS}/qloracc", f"{folder}/m.mlir", "-o", module,
         "--load-in-4bit", "--bnb-4bit-use-double-quant", "--lora-r", "16",
         "--lora-alpha", "32", "--per-device-train-batch-size", "1",
         "--max-length", str(LENGTH), "--compute-dtype", compute, *flags)
    return time.perf_counter() - start


def train(module, data, steps, *flags):
    """tokens/s of each step after the first, and peak resident GiB (VmHWM
    from the start of the process)."""
    out = module + ".out"
    call(f"{TOOLS}/qlora-run", module, "--train-file", data, "--max-steps",
         str(steps), "--logging-steps", "1", "--learning-rate", "1e-4",
         "--output-dir", out, *flags)
    with open(f"{out}/metrics.jsonl") as lines:
        rows = [json.loads(line) for line in lines]
    rates = [row["tokens_per_second"] for row in rows if "loss" in row][1:]
    return rates, max(row.get("peak_memory_bytes", 0) for row in rows) / 2**30


def profile(module, data, *flags):
    """kind of command -> its share of a step, the largest first."""
    trace = module + ".trace.json"
    train(module, data, 5, "--profile", trace, "--profile-warmup", "2",
          "--profile-active", "3", *flags)
    with open(trace) as file:
        rows = json.load(file)["otherData"]["rows"]
    shares = {row["kind"]: row["share"] for row in rows
              if row["queue"] == "compute"}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
