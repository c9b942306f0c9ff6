#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Compares the layout that --parallel auto chooses with all that fit.

    bench/layouts.py [--rounds 5] [--seconds 2] [--cpu-time] [--work DIR]
                     [CASE ...]

Eight cases have two ranks of one thread, and different shapes, lengths,
batches, types and memory limits; in some, only one layout fits. Each layout
that fits is compiled by name and trained. The layouts of a case take turns. The
time of a turn is the lower quartile of its step times, because other load only
adds time. --cpu-time measures the mean CPU time per step and rank instead, for
a machine with other load.

Fails if the chosen layout is slower than another layout by more than the noise.
The slowdown is the median of the rounds' time ratios. The noise is half the
range of these ratios, at least 2 %.
"""

import argparse
import os
import re
import statistics
import subprocess
from dataclasses import dataclass

import cpu_machine
import ours
from scaling import Processes
from shapes import REPOSITORY, SHAPES, write_batch, write_config, write_model

RANKS = 2
LEAST_NOISE = 0.02
LEAST_STEPS = 6


@dataclass
class Case:
    shape: str
    compute: str
    length: int
    rows: int
    # Memory limit as a fraction: 0 is the smallest plan with a sharded base, 1
    # the smallest plan with an unsharded base. None: no limit.
    limit: float | None

    def name(self):
        return f"{self.shape} {self.compute} {self.rows} x {self.length}"


CASES = (
    Case("tiny-llama", "bfloat16", 64, 1, None),
    Case("tiny-qwen2", "float32", 256, 4, 1.1),
    Case("deep-llama", "bfloat16", 256, 2, None),
    Case("deep-llama", "float32", 512, 1, 0.5),
    Case("tiny-qwen2", "bfloat16", 128, 1, 1.5),
    Case("smollm2-135m", "bfloat16", 256, 1, 1.02),
    Case("smollm2-135m", "float32", 256, 1, 0.5),
    Case("smollm2-135m", "bfloat16", 128, 2, 1.5))


class Compiler:
    """The compiler, for one case."""

    def __init__(self, case, work, profile):
        self.case = case
        self.folder = os.path.join(work, case.shape)
        config = write_config(self.folder, SHAPES[case.shape])
        write_model(self.folder, SHAPES[case.shape])
        self.data = os.path.join(self.folder, "layouts.data.safetensors")
        write_batch(self.data, config["vocab_size"], case.length, RANKS,
                    case.rows)
        ours.call(f"{ours.TOOLS}/qlora-import", self.folder, "-o",
                  f"{self.folder}/m.mlir")
        self.flags = ["--device-profile", profile, "--ranks", str(RANKS)]
        if case.limit is not None:
            pieces, whole = map(self.least, ("fsdp=2", "none"))
            limit = int(pieces + case.limit * (whole - pieces))
            self.flags += ["--memory-limit", f"{limit}B"]

    def module(self, layout):
        return os.path.join(self.folder, f"layouts-{layout}.so")

    def run(self, layout, *flags):
        """Compiles with a layout. Returns the finished process."""
        words = ours.compile_words(
            self.folder, self.module(layout), self.case.compute,
            ("--parallel", layout, *self.flags, *flags),
            length=self.case.length, rows=self.case.rows)
        return subprocess.run(words, capture_output=True, text=True)

    def least(self, layout):
        """Returns the bytes of the smallest plan with a layout."""
        said = self.run(layout, "--memory-limit", "1B").stderr
        return int(re.search(r"smallest plan needs .* \((\d+) bytes\)",
                             said)[1])

    def fits(self, layout):
        done = self.run(layout)
        is_too_small = "--memory-limit: the smallest" in done.stderr
        if done.returncode and not is_too_small:
            raise SystemExit(done.stderr)
        return done.returncode == 0

    def choose(self):
        """Compiles with --parallel auto. Returns its report on each layout."""
        report = os.path.join(self.folder, "layouts.json")
        done = self.run("auto", "--plan-report", report)
        if done.returncode:
            raise SystemExit(done.stderr)
        return {row["layout"]: row for row in ours.read_json(report)["layouts"]}


class Turns(Processes):
    """Runs of a module, with the wall and CPU seconds per step and rank of each
    turn."""

    def __init__(self, module, data):
        super().__init__(module, data, RANKS)
        self.steps = [] # CPU seconds so far, after each step
        self.clock, self.cpus = [], []

    def watch(self, child):
        self.steps.append(sum(map(cpu_machine.cpu_seconds,
                                  cpu_machine.children(child.pid))) / RANKS)

    def take_turn(self, steps):
        self.steps.clear()
        super().take_turn(steps)
        run = self.runs[-1]
        self.clock.append(statistics.quantiles(run.seconds[1:])[0])
        self.cpus.append((self.steps[steps - 1] - self.steps[0]) / (steps - 1))


def measure(compiler, layouts, rows, options):
    """Returns, for each layout, the seconds per step of each turn."""
    runs = {name: Turns(compiler.module(name), compiler.data)
            for name in layouts}
    longest = max(rows[name]["step_seconds"] for name in layouts)
    for _ in range(options.rounds):
        for run in runs.values():
            run.take_turn(max(LEAST_STEPS, int(options.seconds / longest)))
    return {name: run.cpus if options.cpu_time else run.clock
            for name, run in runs.items()}


def compare(these, those):
    """Returns how much slower `these` seconds are than `those`, as a fraction,
    and the noise of that fraction."""
    ratios = [a / b for a, b in zip(these, those)]
    return (statistics.median(ratios) - 1,
            max(LEAST_NOISE, (max(ratios) - min(ratios)) / 2))


def line(layout, row, measured, chosen):
    predicted = f"{1e3 * row['step_seconds']:8.1f}" if row["fits"] else ""
    found = ""
    if measured:
        slower, noise = compare(measured, chosen)
        found = (f"{1e3 * statistics.median(measured):8.1f} "
                 f"{100 * slower:+6.1f} ± {100 * noise:.1f} %")
    return (f"  {layout:14} {row['bytes'] / 2**20:8.1f} MiB  {predicted:8}  "
            f"{found:25}  {row['reason']}")


def check(case, profile, options):
    """Prints a case's layouts. Returns whether auto chose the fastest layout,
    up to noise."""
    compiler = Compiler(case, options.work, profile)
    rows = compiler.choose()
    fitting = [name for name in rows if compiler.fits(name)]
    if fitting != [name for name, row in rows.items() if row["fits"]]:
        print(f"{case.name()}\n  FAIL: these fit: {fitting}")
        return False
    measured = measure(compiler, fitting, rows, options)
    chosen = next(name for name, row in rows.items() if row["chosen"])
    isFastest = all(slower <= noise for slower, noise in (
        compare(measured[chosen], other) for other in measured.values()))
    print(case.name())
    for name, row in rows.items():
        print(line(name, row, measured.get(name), measured[chosen]))
    print(f"  {'ok' if isFastest else 'FAIL'}", flush=True)
    return isFastest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", type=int, metavar="CASE",
                        help="from 0; without it all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2,
                        help="of a turn, as predicted")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    options = parser.parse_args()
    profile = cpu_machine.calibrate(options.work, threads=1)
    print("two ranks of one thread; plan, ms a step predicted and measured "
          f"({'of CPUs' if options.cpu_time else 'by the clock'})")
    wrong = [case.name() for number, case in enumerate(CASES)
             if (not options.cases or number in options.cases)
             and not check(case, profile, options)]
    print(f"wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
