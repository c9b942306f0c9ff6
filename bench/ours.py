# SPDX-License-Identifier: MIT

"""Runs this project's tools for the benchmarks."""

import json
import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field

from shapes import LENGTH, RANK, REPOSITORY

TOOLS = os.path.join(REPOSITORY, "build", "bin")
# Bytes that a process may use in addition to its plan.
MEMORY_SLACK = 64 << 20
# Plain AdamW at a constant rate, as in baseline_cpu.py.
TRAINING = ("--learning-rate", "1e-4", "--lr-scheduler-type", "constant",
            "--max-grad-norm", "0", "--logging-steps", "1")


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    return done.stdout


def read_json(path):
    with open(path) as file:
        return json.load(file)


def compile_words(folder, module, compute, flags, length=LENGTH, rows=1):
    return (f"{TOOLS}/qloracc", f"{folder}/m.mlir", "-o", module,
            "--target", "cpu",
            "--load-in-4bit", "--bnb-4bit-use-double-quant", "--lora-r",
            str(RANK), "--lora-alpha", str(2 * RANK),
            "--per-device-train-batch-size", str(rows), "--max-length",
            str(length),
            "--compute-dtype", compute, *flags)


def compile_module(folder, module, compute, *flags, length=LENGTH):
    """Compiles a model folder to a module. Returns the seconds."""
    start = time.perf_counter()
    call(f"{TOOLS}/qlora-import", folder, "-o", f"{folder}/m.mlir")
    call(*compile_words(folder, module, compute, flags, length))
    return time.perf_counter() - start


def planned(folder, name, compute, *flags, length=LENGTH):
    """Compiles a module. Returns its path and its plan.json."""
    module = os.path.join(folder, f"{name}.so")
    report = os.path.join(folder, f"{name}.json")
    compile_module(folder, module, compute, "--plan-report", report, *flags,
                   length=length)
    return module, read_json(report)


def gathered(plan):
    """Returns the largest number of gathered bytes at the memory peak of any
    entry."""
    return max(entry["peak"].get("gathered", 0) for entry in plan["entries"]
               if "peak" in entry)


def entry_seconds(plan, kind="accumulate_last"):
    """Returns the predicted seconds of an entry."""
    return next(entry["seconds"] for entry in plan["entries"]
                if entry["kind"] == kind)


@dataclass
class Run:
    """Results of a qlora-run process, step by step."""
    losses: list = field(default_factory=list)
    seconds: list = field(default_factory=list)  # of each step
    tokens: list = field(default_factory=list)
    evaluations: list = field(default_factory=list)  # losses
    start_seconds: float = 0  # from process start to the first step
    peak: int = 0  # VmHWM, in bytes
    predicted_peak: int = 0
    planned: int = 0

    def add(self, row, elapsed):
        if "loss" in row:
            if not self.seconds:
                self.start_seconds = elapsed - row["step_time"]
            self.losses.append(row["loss"])
            self.seconds.append(row["step_time"])
            self.tokens.append(row["num_input_tokens_seen"] -
                               sum(self.tokens))
        elif "eval_loss" in row:
            self.evaluations.append(row["eval_loss"])
        elif "peak_memory_bytes" in row:
            self.peak = row["peak_memory_bytes"]
            self.predicted_peak = row["predicted_peak_memory_bytes"]
            self.planned = row["planned_bytes"]

    def rates(self):
        """Returns tokens/s of each step after the first."""
        return [tokens / seconds for tokens, seconds in
                zip(self.tokens[1:], self.seconds[1:])]

    def keeps_memory(self):
        """True if the peak is within 5 % + 64 MiB of the prediction."""
        return abs(self.peak - self.predicted_peak) <= (
            0.05 * self.predicted_peak + MEMORY_SLACK)


def train_words(module, data, steps, flags):
    return (f"{TOOLS}/qlora-run", module, "--train-file", data, "--max-steps",
            str(steps), "--output-dir", module + ".out",
            "--overwrite-output-dir", "--log-format", "json", *TRAINING, *flags)


def train(module, data, steps, *flags, prefix=(), watch=None):
    """Runs qlora-run, with the words `prefix` before the command. Calls `watch`
    with the process after each line that it prints. Returns a Run."""
    words = (*prefix, *train_words(module, data, steps, flags))
    run, start = Run(), time.perf_counter()
    with open(module + ".err", "w+") as errors, subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
        for line in child.stdout:
            run.add(json.loads(line), time.perf_counter() - start)
            if watch:
                watch(child)
        code = child.wait()
        errors.seek(0)
        if code:
            raise SystemExit(f"{' '.join(words)}\n{errors.read()}")
    return run


def evaluate(module, data, validation, *flags):
    """Evaluates a module without training. Returns a Run."""
    return train(module, data, 0, "--num-train-epochs", "0",
                 "--validation-file", validation, *flags)


def profile(module, data, *flags, active=3, prefix=()):
    """Profiles `active` steps after one warm-up step. Returns the trace."""
    trace = module + ".trace.json"
    train(module, data, 1 + active, "--profile", trace, "--profile-warmup",
          "1", "--profile-active", str(active), *flags, prefix=prefix)
    return read_json(trace)


def shares(trace):
    """Returns a dictionary: kind of command -> fraction of the step on the
    compute queue, largest first."""
    found = {row["kind"]: row["share"] for row in trace["otherData"]["rows"]
             if row["queue"] == "compute"}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def rate_of(trace, kind):
    """Returns the FLOP/s of all commands of a kind, from a trace's table."""
    return sum(row["gflops"] for row in trace["otherData"]["rows"]
               if row["kind"] == kind) * 1e9


def commands(trace):
    """Returns a trace's events of rank 0 on the compute and copy queues, sorted
    by start."""
    return sorted((event for event in trace["traceEvents"]
                   if event["ph"] == "X" and event["pid"] == 0
                   and event["tid"] in (1, 3)), key=lambda event: event["ts"])


def median_rate(runs):
    return statistics.median(rate for run in runs for rate in run.rates())


def conclude(text, failures):
    """Prints a result's text and failures. Returns the exit code."""
    print(text)
    for failure in failures:
        print(f"FAIL {failure}")
    return 1 if failures else 0
