#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Measures the time from starting `qlora-run` to the first step, on the CPU.

    bench/start.py [--shapes smollm2-135m,...] [--rounds 3] [--work DIR]

Each shape has random bf16 weights and NF4 with double quantization. Prints wall
seconds and CPU seconds of all threads until qlora-run prints its plan. All
weights are in their arenas then, and the first step begins. Figures are the
best of all rounds:

  file      reading the model's file once, from the disk
  first     a start that reads the file from the disk and quantizes it
  warm      as first, with the file in the page cache
  second    a start that maps the base of an earlier run, from the disk
  mapped    as second, with the base in the page cache

A file is dropped from the page cache before it is read from the disk. "share"
is the size of the cached base relative to the model's file.
"""

import argparse
import glob
import os
import subprocess
import time

from ours import TOOLS, call, compile_module
from shapes import REPOSITORY, SHAPES, write_batch, write_model

TICKS = os.sysconf("SC_CLK_TCK")
SETTLED = 2.1  # seconds until qlora-run trusts a new file's time stamp


def drop(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read_seconds(path):
    drop(path)
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    return time.perf_counter() - start


def command(folder, module, cache, steps):
    return [f"{TOOLS}/qlora-run", module, "--train-file",
            f"{folder}/batch.safetensors", "--max-steps", str(steps),
            "--output-dir", f"{folder}/out", "--overwrite-output-dir",
            "--base-cache", cache]


def start_seconds(folder, module, cache):
    """Returns wall and CPU seconds until the plan is printed. Kills the run
    then."""
    start = time.perf_counter()
    run = subprocess.Popen(command(folder, module, cache, 1),
                           stdout=subprocess.PIPE, text=True)
    with run.stdout as lines:
        planned = any(line.startswith("memory") for line in lines)
        wall = time.perf_counter() - start
        with open(f"/proc/{run.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        run.kill()
    run.wait()
    if not planned:
        raise SystemExit(f"{module}: the run ended before its plan")
    return wall, (int(fields[11]) + int(fields[12])) / TICKS


def measure(name, options):
    folder = os.path.join(options.work, name)
    write_model(folder, SHAPES[name])
    write_batch(f"{folder}/batch.safetensors", SHAPES[name]["vocab_size"])
    module = f"{folder}/start.so"
    compile_module(folder, module, "bfloat16")
    time.sleep(SETTLED)
    weights, cache = f"{folder}/model.safetensors", f"{folder}/bases"
    call(*command(folder, module, cache, 1))
    base = max(glob.glob(f"{cache}/*.base"), key=os.path.getmtime)
    best = {}
    for _ in range(options.rounds):
        rows = {"file": (read_seconds(weights), 0.0)}
        for row, place, cold in (
                ("first", "none", weights), ("warm", "none", None),
                ("second", cache, base), ("mapped", cache, None)):
            if cold:
                drop(cold)
            rows[row] = start_seconds(folder, module, place)
        for row, times in rows.items():
            best[row] = tuple(map(min, best.get(row, times), times))
    share = os.path.getsize(base) / os.path.getsize(weights)
    print(f"{name}: " + "; ".join(
        f"{row} {wall:.2f} s" + (f" ({cpu:.2f} CPU s)" if cpu else "")
        for row, (wall, cpu) in best.items()) + f"; share {share:.0%}",
        flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes",
                        default="smollm2-135m,qwen2.5-0.5b,llama3.2-1b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    options = parser.parse_args()
    for name in options.shapes.split(","):
        measure(name, options)


if __name__ == "__main__":
    main()
