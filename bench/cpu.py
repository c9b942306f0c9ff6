#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The CPU table: our training step beside PyTorch's, on the same machine.

    bench/cpu.py [--shapes smollm2-135m,...] [--rounds 2] [--steps 6]
                 [--compute float32,bfloat16] [--sft SHAPE]
                 [--peer-python PYTHON] [--work DIR] [--json FILE]

For each shape: random bf16 weights, NF4 with double quantisation, r = 16 on
all linears, B = 1, T = 512, AdamW; ours and the peer (transformers + PEFT +
bitsandbytes, bench/peer_cpu.py) take turns. Prints the median tokens per
second of all steps after the first, peak resident memory, their ratio, and
the share of our step by kind of command (of a run of its own, --profile).

--sft: a fine-tuning set instead, rows of 40 to 512 tokens with prompts that
have no loss; ours packs them into micro-batches of 1 x 512, three a step, the
peer pads batches of 8 (about as many tokens) to the longest row. The figures
are labelled tokens per second.

The peer runs with the python that --peer-python names, which needs torch,
transformers, peft and bitsandbytes.
"""

import argparse
import json
import os
import re
import statistics
import subprocess

from ours import compile_module, profile, train
from shapes import REPOSITORY, SHAPES, write_batch, write_model, write_rows

PEER_COMPUTE = {"float32": "f32", "bfloat16": "bf16"}


def run_peer(options, name, compute, *flags):
    """Tokens (with --sft: labelled tokens) per second, and peak GiB."""
    done = subprocess.run(
        [options.peer_python, os.path.join(REPOSITORY, "bench", "peer_cpu.py"),
         name, "nf4", "--compute", PEER_COMPUTE[compute], "--steps",
         str(options.steps), *flags],
        check=True, capture_output=True, text=True)
    what = "labelled tok/s" if flags else "tok/s"
    rate = float(re.search(rf"([0-9.]+) {what}", done.stdout).group(1))
    memory = float(re.search(r"rss ([0-9.]+) GiB", done.stdout).group(1))
    return rate, memory


def measure(options, name, compute, prepare, peer_flags):
    """One row: `prepare` gives functions that run ours once and profile
    it."""
    folder = os.path.join(options.work, name)
    write_model(folder, SHAPES[name])
    module = os.path.join(folder, f"train-{compute}.so")
    seconds = compile_module(folder, module, compute)
    ours, shares = prepare(folder, module)
    rates, peers, peak, peer_peak = [], [], 0.0, 0.0
    for _ in range(options.rounds):
        more, memory = ours()
        rates += more
        peak = max(peak, memory)
        if options.peer_python:
            rate, memory = run_peer(options, name, compute, *peer_flags)
            peers.append(rate)
            peer_peak = max(peer_peak, memory)
    row = dict(shape=name, compute=compute, sft=bool(peer_flags),
               ours=statistics.median(rates), ours_gib=peak,
               compile_seconds=seconds, shares=shares())
    if peers:
        row.update(peer=statistics.median(peers), peer_gib=peer_peak)
        row["ratio"] = row["ours"] / row["peer"]
    return row


def plain(options, name):
    def prepare(folder, module):
        data = os.path.join(folder, "batch.safetensors")
        write_batch(data, SHAPES[name]["vocab_size"])
        return (lambda: train(module, data, options.steps),
                lambda: profile(module, data))
    return prepare


def fine_tuning(options, name):
    def prepare(folder, module):
        data = os.path.join(folder, "rows.safetensors")
        labelled = write_rows(data, SHAPES[name]["vocab_size"])

        flags = ("--packing", "--gradient-accumulation-steps", "3")

        def run():
            rates, peak = train(module, data, options.steps, *flags)
            return [rate * labelled for rate in rates], peak
        return run, lambda: profile(module, data, *flags)
    return prepare


def text_of(row):
    unit = "labelled tok/s" if row["sft"] else "tok/s"
    text = (f"{row['shape']} {row['compute']}: ours {row['ours']:.1f} {unit}, "
            f"{row['ours_gib']:.2f} GiB, compiled in "
            f"{row['compile_seconds']:.2f} s")
    if "peer" in row:
        text += (f"; peer {row['peer']:.1f} {unit}, {row['peer_gib']:.2f} GiB;"
                 f" ratio {row['ratio']:.2f}")
    shares = ", ".join(f"{kind} {share:.0%}"
                       for kind, share in row["shares"].items()
                       if share >= 0.005)
    return f"{text}\n  of our step: {shares}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--sft", default="qwen2.5-0.5b")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--compute", default="float32,bfloat16")
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    jobs = [(name, plain, ()) for name in options.shapes.split(",") if name]
    jobs += [(name, fine_tuning, ("--sft", "--batch", "8"))
             for name in options.sft.split(",") if name]
    table = []
    for name, prepare, flags in jobs:
        for compute in options.compute.split(","):
            row = measure(options, name, compute, prepare(options, name),
                          flags)
            print(text_of(row), flush=True)
            table.append(row)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
