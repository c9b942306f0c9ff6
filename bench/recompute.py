#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Recomputation under the same peak: whole blocks against the byte budget.

    bench/recompute.py [--shape smollm2-135m] [--rounds 3] [--steps 6]
                       [--compute float32] [--int8] [--work DIR]

Compiles the shape with --gradient-checkpointing (whole blocks), then with the
peak of that plan as --memory-limit, and lets both train in turns. Prints both
plans, the predicted seconds of recomputation, and the measured tokens per
second; with everything kept, for comparison, too. With --int8 also what
--activation-dtype-for-lora int8 makes of it: everything kept, and recomputation
alone within the same bytes; and within those of the whole blocks.
"""

import argparse
import json
import os
import statistics

from ours import compile_module, train
from shapes import REPOSITORY, SHAPES, write_batch, write_model


def compiled(folder, name, compute, *flags):
    """The module, its planned bytes and its predicted recomputation."""
    module = os.path.join(folder, f"{name}.so")
    report = os.path.join(folder, f"{name}.json")
    compile_module(folder, module, compute, "--report", report, *flags)
    with open(report) as file:
        plan = json.load(file)
    return (module, plan["total_bytes"],
            plan["rematerialize"]["recompute_seconds"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--compute", default="float32")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    options = parser.parse_args()
    folder = os.path.join(options.work, options.shape)
    write_model(folder, SHAPES[options.shape])
    data = os.path.join(folder, "batch.safetensors")
    write_batch(data, SHAPES[options.shape]["vocab_size"])
    blocks = compiled(folder, "blocks", options.compute,
                      "--gradient-checkpointing")
    plans = {"everything kept": compiled(folder, "kept", options.compute),
             "whole blocks": blocks,
             "budget": compiled(folder, "budget", options.compute,
                                "--memory-limit", str(blocks[1]))}
    if options.int8:
        int8 = ("--activation-dtype-for-lora", "int8")
        kept = compiled(folder, "kept-int8", options.compute, *int8)
        plans["everything kept, int8"] = kept
        plans["budget of that"] = compiled(
            folder, "same", options.compute, "--memory-limit", str(kept[1]))
        plans["budget of whole blocks, int8"] = compiled(
            folder, "budget-int8", options.compute, "--memory-limit",
            str(blocks[1]), *int8)
    rates = {name: [] for name in plans}
    for _ in range(options.rounds):
        for name, (module, _, _) in plans.items():
            rates[name] += train(module, data, options.steps)[0]
    for name, (_, total, seconds) in plans.items():
        print(f"{options.shape} {options.compute}, {name}: planned "
              f"{total / 2**20:.1f} MiB, predicted recomputation "
              f"{seconds * 1e3:.1f} ms, "
              f"{statistics.median(rates[name]):.1f} tok/s")


if __name__ == "__main__":
    main()
