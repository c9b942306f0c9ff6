#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Training with decreasing memory limits, compared with block checkpointing.

    bench/limits.py [--shape smollm2-135m] [--compute bfloat16] [--limits 7]
                    [--length 512] [--rounds 3] [--steps 4] [--work DIR]

Compiles the shape without a limit (all activations kept), with the smallest
possible limit, with limits between, and with --gradient-checkpointing ("whole
blocks"). Then all of these train in turns. Prints planned and resident bytes,
and the predicted and measured time of a step.

Fails if
 - a plan is above its limit,
 - a plan with less memory is predicted to be faster,
 - a plan with at least the memory of whole blocks is predicted to be slower,
 - resident bytes differ from the prediction,
 - losses differ by more than rounding.
"""

import argparse
import os
import re
import statistics
import subprocess

import cpu_machine
import ours
from shapes import (LENGTH, REPOSITORY, SHAPES, write_batch, write_config,
                    write_model)

FLOAT32_LOSS, BFLOAT16_LOSS = 2e-5, 0.02  # relative
# Allowed relative difference between measured times.
NOISE = 0.05


class Plan:
    """A module, its predictions, and its runs."""

    def __init__(self, name, module, plan, limit=0):
        self.name, self.module, self.limit = name, module, limit
        self.bytes = plan["total_bytes"]
        self.predicted_seconds = ours.entry_seconds(plan)
        self.recomputed_seconds = plan["rematerialize"]["recompute_seconds"]
        self.runs = []

    def seconds(self):
        """Returns the median seconds of steps after the first of each run."""
        return statistics.median(second for run in self.runs
                                 for second in run.seconds[1:])

    def to_json(self):
        largest = max(self.runs, key=lambda run: run.peak)
        return {"name": self.name, "limit": self.limit, "bytes": self.bytes,
                "predicted_seconds": self.predicted_seconds,
                "recomputed_seconds": self.recomputed_seconds,
                "seconds": self.seconds(), "peak": largest.peak,
                "predicted_peak": largest.predicted_peak,
                "losses": self.runs[0].losses}


class Planner:
    def __init__(self, folder, compute, profile, length):
        self.folder, self.compute = folder, compute
        self.flags, self.length = ("--device-profile", profile), length

    def plan(self, name, *flags, limit=0):
        if limit:
            flags += ("--memory-limit", f"{limit}B")
        module, plan = ours.planned(self.folder, f"limit-{name}", self.compute,
                                    *self.flags, *flags, length=self.length)
        return Plan(name, module, plan, limit)

    def smallest(self):
        """Returns the smallest possible limit, from the error for 1 byte."""
        words = ours.compile_words(
            self.folder, os.path.join(self.folder, "limit-none.so"),
            self.compute, (*self.flags, "--memory-limit", "1B"), self.length)
        done = subprocess.run(words, capture_output=True, text=True)
        found = re.search(r"smallest plan needs .* \((\d+) bytes\)",
                          done.stderr)
        assert done.returncode == 1 and found, done.stderr
        return int(found[1])

    def ladder(self, count):
        """Returns the plan of --gradient-checkpointing, and a list of plans:
        everything kept, then about `count` decreasing limits."""
        kept = self.plan("kept")
        blocks = self.plan("blocks", "--gradient-checkpointing")
        low = self.smallest()
        steps = [kept.bytes - (kept.bytes - low) * i // (count - 1)
                 for i in range(count)]
        # Also use the bytes of --gradient-checkpointing as a limit.
        limits = sorted({*steps, blocks.bytes} - {kept.bytes}, reverse=True)
        within = [self.plan(f"{i + 1}", limit=max(limit, low))
                  for i, limit in enumerate(limits)]
        return blocks, [kept, *within]


def differ(losses, others):
    return max(abs(a / b - 1) for a, b in zip(losses, others))


def failures(blocks, plans, compute):
    """Returns messages about wrong plans, losses and memory."""
    found = []
    for plan in plans:
        if plan.limit and plan.bytes > plan.limit:
            found.append(f"limit {plan.limit}: planned {plan.bytes} bytes")
        if (plan.bytes >= blocks.bytes and plan.predicted_seconds
                > blocks.predicted_seconds * (1 + 1e-9)):
            found.append(f"limit {plan.limit}: {plan.predicted_seconds:.6f} s "
                         "predicted, whole blocks need "
                         f"{blocks.predicted_seconds:.6f} s and no more bytes")
    for more, less in zip(plans, plans[1:]):
        if less.predicted_seconds < more.predicted_seconds * (1 - 1e-9):
            found.append(f"limit {less.limit} is predicted to be faster than "
                         f"{more.limit or 'everything kept'}: "
                         f"{less.predicted_seconds:.6f} s and "
                         f"{more.predicted_seconds:.6f} s")
    limit = FLOAT32_LOSS if compute == "float32" else BFLOAT16_LOSS
    for plan in [blocks, *plans]:
        for run in plan.runs:
            if differ(run.losses, plans[0].runs[0].losses) > limit:
                found.append(f"{plan.name}: losses {run.losses} instead of "
                             f"{plans[0].runs[0].losses}")
            if not run.keeps_memory() or run.planned != plan.bytes:
                found.append(f"{plan.name}: {run.peak} bytes resident, "
                             f"{run.predicted_peak} predicted; arenas of "
                             f"{run.planned}, {plan.bytes} planned")
    return found


def verdicts(blocks, plans):
    """Returns pairs (target of the measured times, whether it is met)."""
    pairs = list(zip(plans, plans[1:]))
    follows = [less.seconds() >= more.seconds() * (1 - NOISE)
               for more, less in pairs]
    above = [plan for plan in plans if plan.bytes >= blocks.bytes]
    return [
        (f"less memory is not faster by more than {NOISE:.0%}, of "
         f"{len(pairs)} limits", all(follows)),
        (f"not slower than whole blocks by more than {NOISE:.0%}, of "
         f"{len(above)} plans with at least their memory",
         all(plan.seconds() <= blocks.seconds() * (1 + NOISE)
             for plan in above))]


def measure(shape, compute, profile, work, limits=7, length=LENGTH, rounds=3,
            steps=4):
    """Measures the limits of a shape. Returns JSON."""
    folder = os.path.join(work, shape)
    config = write_config(folder, SHAPES[shape])
    write_model(folder, SHAPES[shape])
    data = os.path.join(folder, "limits.data.safetensors")
    write_batch(data, config["vocab_size"], length)
    blocks, plans = Planner(folder, compute, profile, length).ladder(limits)
    for _ in range(rounds):
        for plan in (blocks, *plans):
            plan.runs.append(ours.train(plan.module, data, steps))
    return {"name": "limits", "shape": shape, "compute": compute,
            "length": length, "blocks": blocks.to_json(),
            "plans": [plan.to_json() for plan in plans],
            "failures": failures(blocks, plans, compute),
            "verdicts": verdicts(blocks, plans)}


def text_of(result):
    """Returns Markdown."""
    lines = [f"{result['shape']}, {result['compute']}, T = {result['length']}",
             "", "| plan | limit, MiB | planned | resident (predicted) | step, "
             "ms: predicted | measured | tok/s |", "|---|---|---|---|---|---|"
             "---|"]
    for plan in [*result["plans"], result["blocks"]]:
        mib = {key: f"{plan[key] / 2**20:.1f}" for key in
               ("limit", "bytes", "peak", "predicted_peak")}
        name = {"kept": "everything kept", "blocks": "whole blocks"}.get(
            plan["name"], "")
        lines.append(
            f"| {name} | {mib['limit'] if plan['limit'] else ''} | "
            f"{mib['bytes']} | {mib['peak']} ({mib['predicted_peak']}) | "
            f"{plan['predicted_seconds'] * 1e3:.1f} | "
            f"{plan['seconds'] * 1e3:.1f} | "
            f"{result['length'] / plan['seconds']:.0f} |")
    lines += [""] + [f"* {'met' if met else 'missed'}: {what}"
                     for what, met in result["verdicts"]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--compute", default="bfloat16")
    parser.add_argument("--limits", type=int, default=7)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    options = parser.parse_args()
    profile = cpu_machine.calibrate(options.work)
    result = measure(options.shape, options.compute, profile, options.work,
                     options.limits, options.length, options.rounds,
                     options.steps)
    return ours.conclude(text_of(result), result["failures"])


if __name__ == "__main__":
    raise SystemExit(main())
