#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Compares the speed of two programs. The first has data-parallel ranks with a
whole base. The second has ranks with a sharded base (--parallel fsdp=N), or for
--axis tp or cp, tensor- or context-parallel ranks.

    bench/shards.py [--shape smollm2-135m] [--axis fsdp] [--ranks 2]
                    [--length 512] [--compute bfloat16] [--rounds 3] [--steps 4]
                    [--work DIR]

Each rank has one thread, and one micro-batch per step (tp and cp ranks share a
micro-batch). The two programs take turns. Prints the tokens/s of both, their
ratio, the private memory of a rank with a sharded base, and the planned bytes
of its shard of the base and of other ranks' shards.
"""

import argparse
import os

import ours
from scaling import Processes
from shapes import (LENGTH, REPOSITORY, SHAPES, write_batch, write_config,
                    write_model)

TARGETS = {"cp": 0, "fsdp": 0.9, "tp": 0}


def measure(options):
    folder = os.path.join(options.work, options.shape)
    config = write_config(folder, SHAPES[options.shape])
    write_model(folder, SHAPES[options.shape])
    data = os.path.join(folder, "shards.data.safetensors")
    write_batch(data, config["vocab_size"], options.length,
                count=options.ranks)
    plans, runs = {}, {}
    for name, flags in (("whole", ()), (
            "pieces", ("--parallel", f"{options.axis}={options.ranks}"))):
        module, plans[name] = ours.planned(folder, f"shards-{name}",
                                           options.compute, *flags,
                                           length=options.length)
        runs[name] = Processes(module, data, options.ranks)
    for _ in range(options.rounds):
        for run in runs.values():
            run.take_turn(options.steps)
    return plans, runs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--axis", choices=sorted(TARGETS), default="fsdp")
    parser.add_argument("--compute", default="bfloat16")
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    options = parser.parse_args()
    plans, runs = measure(options)
    rates = {name: run.rate() for name, run in runs.items()}
    ratio = rates["pieces"] / rates["whole"]
    mib = {name: value / 2**20 for name, value in (
        ("base", plans["whole"]["arenas"]["frozen"]),
        ("pieces", plans["pieces"]["arenas"]["frozen"]),
        ("gathered", ours.gathered(plans["pieces"])),
        ("planned", plans["pieces"]["total_bytes"]),
        ("private", runs["pieces"].private))}
    target = TARGETS[options.axis]
    print(f"{options.shape}, {options.compute}, {options.ranks} ranks of one "
          f"thread, T = {options.length}, {options.axis}\n"
          f"  whole base   {rates['whole']:.1f} tok/s\n"
          f"  sharded base {rates['pieces']:.1f} tok/s, {ratio:.3f} of it\n"
          f"  a rank holds {mib['pieces']:.1f} of {mib['base']:.1f} MiB, and "
          f"{mib['gathered']:.1f} of others' at most\n"
          f"  planned      {mib['planned']:.1f} MiB, private at most "
          f"{mib['private']:.1f}\n"
          f"  {'met' if ratio >= target else 'missed'}: {target:.0%} of the "
          "speed with a whole base")
    return 0 if ratio >= target else 1


if __name__ == "__main__":
    raise SystemExit(main())
