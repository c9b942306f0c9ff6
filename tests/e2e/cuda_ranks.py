#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Trains a golden case on several ranks of the software CUDA platform.

    cuda_ranks.py --tools build/bin [--case qwen3-ranks]

  split    1, 2 and 4 ranks have the same losses, with graphs and without
  seeds    2 ranks have the same losses, bit for bit, in every order that
           streams may run, with graphs and without, and with fsdp and the
           base in host memory
  labels   the same losses if ranks have different fractions of labels, so that
           each rank alone would choose another graph, and if hosts are late
  kinds    a GPU of 8.0 and one of 9.0 train together
  plans    each GPU gets the one of two programs that fits its memory
  shared   two ranks of one GPU take the plans that fit it together, with the
           same losses, and are refused if none fit
  killed   a rank that is killed in the middle is named, soon, and no process
           is left
  hangs    a collective that never ends is given up after --ddp-timeout

tests/runtime/Session tests the errors of every failing call of NCCL.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time

from checkpoint_runs import Runs
from cuda_platform import Case, Failure, expect
from safetensors_io import load, save

TOLERANCE = 2e-5
BOUND = 60  # seconds until a job has ended, on a busy machine
CARDS = ",".join(["sm_90:4096"] * 4)


class Ranks:
    """A case whose steps have four micro-batches."""

    def __init__(self, case, cards=CARDS):
        self.case, self.cards = case, cards

    def flags(self, ranks, steps):
        return ("--gradient-accumulation-steps", str(4 // ranks),
                "--max-steps", str(steps), "--logging-steps", "1")

    def losses(self, ranks, *flags, steps=3, **variables):
        return self.case.train(*self.flags(ranks, steps), *flags, ranks=ranks,
                               devices=self.cards, **variables)[0]

    def error(self, *flags, **variables):
        """Runs a job that fails. Returns its one error line, its exit code and
        its seconds."""
        start = time.monotonic()
        code, errors, _, _ = self.case.run(
            [*self.flags(2, 3), *flags], ranks=2, devices=self.cards,
            **variables)
        lines = [line for line in errors.splitlines() if "error:" in line]
        if code == 0 or len(lines) != 1:
            raise Failure(f"{variables}: exit {code}, {len(lines)} errors: "
                          f"{errors[-500:]}")
        return lines[0], code, time.monotonic() - start


def running(module):
    """Returns the processes that have the file `module` open."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if module.encode() in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue  # the process has ended
    return found


def worst(losses, want):
    return max(abs(a - b) / max(1, abs(b))
               for got, expected in zip(losses, want, strict=True)
               for a, b in zip(got, expected))


def check_splits(ranks):
    failed, want = 0, ranks.losses(1)
    for count in (2, 4):
        for graphs in ("true", "false"):
            error = worst(ranks.losses(count, "--cuda-graphs", graphs), want)
            failed += expect("split", error <= TOLERANCE,
                             f"{count} ranks, graphs {graphs}: {error:.2g}")
    return failed


def check_seeds(ranks):
    failed, want = 0, ranks.losses(2)
    for seed in (2, 3, 4):
        graphs = "false" if seed == 4 else "true"
        losses = ranks.losses(2, "--cuda-graphs", graphs, seed=seed)
        failed += expect("seeds", losses == want,
                         f"seed {seed}, graphs {graphs}")
    return failed


def write_labels(case):
    """Writes the case's tokens, with fewer labels in some micro-batches."""
    path = os.path.join(case.work, "labels.safetensors")
    tensors = load(os.path.join(os.path.dirname(case.yaml),
                                "batches.safetensors"))
    labels = tensors["labels"] = tensors["labels"].copy()
    shares = (0.4, 0.4, 0.4, 1), (0.2, 0.7, 0.2, 0.7)  # by rank and step
    for i, rows in enumerate(labels):
        share = shares[i % 2][i // 4 % 4]
        rows[:, int(rows.shape[1] * share):] = -100
    save(path, tensors)
    return path


def check_labels(ranks):
    flags = ("--train-file", write_labels(ranks.case))
    want, both = (ranks.losses(count, *flags, steps=6) for count in (1, 2))
    error = worst(both, want)
    failed = expect("labels", error <= TOLERANCE, f"2 ranks: {error:.2g}")
    losses = ranks.losses(2, *flags, steps=6, delay="1:500@1")
    return failed + expect("labels", losses == both, "a host that is late")


def check_kinds(case, want):
    mixed = Ranks(case, "sm_80:4096,sm_90:4096")
    error = worst(mixed.losses(2), want)
    return expect("kinds", error <= TOLERANCE,
                  f"sm_80 and sm_90: {error:.2g}")


def check_plans(tools, work):
    """Gives GPUs one of two programs of the demo, whose plans have 45 and 54
    MiB."""
    runs = Runs(tools, work, 2)
    small = os.path.join(work, "small.so")
    runs.compile_for_cards("large.so")
    runs.compile_for_cards("small.so", "--gradient-checkpointing", "true")
    losses = []
    shared = ("--ranks-per-gpu", "2")
    for cards, programs in (("sm_90:4096,sm_90:4096", ()),
                            ("sm_90:4096,sm_90:50", (small,)),
                            ("sm_90:100", (small, *shared))):
        folder = runs.folder("plans")
        environment = {**runs.cards(2), "QLORA_TEST_CUDA_DEVICES": cards}
        runs.run(folder, *programs, "--gpus", "2", "--eval-strategy", "no",
                 "--max-steps", "2", "--logging-steps", "1",
                 program="large.so", environment=environment)
        with open(os.path.join(folder, "metrics.jsonl")) as lines:
            losses.append([(m["loss"], m["grad_norm"])
                           for m in map(json.loads, lines) if "grad_norm" in m])
    failed = 0
    for name, cards, got in (("plans", "4096 and 50", losses[1]),
                             ("shared", "one of 100", losses[2])):
        error = worst(got, losses[0])
        failed += expect(name, error <= TOLERANCE and len(got) == 2,
                         f"{cards} MiB: {error:.2g}")
    return failed + check_no_room(runs, shared)


def check_no_room(runs, shared):
    """Checks a GPU that the larger plan fits once, but not twice."""
    folder = runs.folder("refused")
    environment = {**runs.cards(2), "QLORA_TEST_CUDA_DEVICES": "sm_90:100"}
    done = runs.run(folder, "--gpus", "2", *shared, "--max-steps", "2",
                    program="large.so", environment=environment, expect=None)
    said = re.search(r"GPU 0 \(.*\) has 100 MiB of 100 MiB free, but the "
                     r"plans of its 2 ranks need (\d+) MiB together .*Fix: "
                     r"compile with --memory-limit 50MiB", done.stderr)
    return expect("shared", done.returncode == 1 and said
                  and float(said[1]) > 100, done.stderr.strip()[-300:])


def check_ends(ranks):
    failed = 0
    for name, part, settings, flags in (
            ("killed", "rank 1: was killed by signal 9",
             {"fail": "run:700:kill@1"}, ()),
            ("killed", "rank 1: was killed by signal 9",
             {"fail": "cuGraphLaunch:2:kill@1"}, ()),
            ("hangs", "has not ended after 5 s", {"hang": "4@1"},
             ("--ddp-timeout", "5"))):
        line, code, seconds = ranks.error(*flags, **settings)
        left = running(ranks.case.module)
        failed += expect(
            name, part in line and seconds < BOUND and not left,
            f"{settings}: exit {code} in {seconds:.1f} s, {len(left)} "
            f"processes left: {line}")
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--case", default="qwen3-ranks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        try:
            case = Case(options.tools, options.case, work, archs="80,90")
            ranks = Ranks(case)
            failed = check_splits(ranks) + check_seeds(ranks)
            failed += check_labels(ranks)
            failed += check_kinds(case, ranks.losses(2))
            failed += check_plans(options.tools, work)
            failed += check_ends(ranks)
            failed += check_seeds(Ranks(Case(
                options.tools, options.case, work,
                flags=("--parallel", "fsdp=2", "--offload", "base"))))
        except Failure as failure:
            print(f"FAIL {failure}")
            failed = 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
