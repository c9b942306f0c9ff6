# SPDX-License-Identifier: MIT

"""Trains a module of the bundle on this machine, and returns its figures.
Optionally profiles two more steps, kernel by kernel, and compares them with the
null device's prediction.
"""

import collections
import gzip
import json
import math
import os
import re
import shutil
import statistics
import tempfile

from gpu_bundle import Failure
from gpu_machine import GRACE_SECONDS, Clocks
from work import work_per_token

RESERVE = re.compile(r"^\s*(\S.*?)\s{2,}(\S+ \S+)\s+outside the plan$")
STEP = re.compile(r"\s*\d+/\d+ ")
PROFILED = 2
# Maximum number of output lines per run in the results, except step lines.
SAID_LINES = 200


def lora_rank(machine, run):
    return {**machine.shapes["compile"], **run.get("compile", {})}["lora_r"]


def read_steps(path):
    """Returns the steps in metrics.jsonl, and the final summary or {}."""
    steps, summary = [], {}
    if os.path.exists(path):
        with open(path) as lines:
            for line in lines:
                row = json.loads(line)
                if "loss" in row:
                    steps.append(row)
                elif "train_loss" in row:
                    summary = row
    return steps, summary


def summarise(machine, run, record, done, steps, summary):
    """Returns a dictionary of the run's figures. Memory is GPU memory; times
    are measured on the host."""
    measured = steps[run["warm_up"]:run["warm_up"] + run["steps"]]
    seconds = statistics.median(row["step_time"] for row in measured)
    tokens = run["batch"] * run["length"] * run["accumulation"]
    flops = work_per_token(machine.shapes["models"][run["model"]],
                           lora_rank(machine, run), run["length"])
    peak = max([row["memory_bytes"] for row in steps]
               + [summary.get("peak_memory_bytes", 0)])
    first = [at for at, line in done.lines if line.lstrip().startswith("1/")]
    return {
        **{name: value for name, value in record.items()
           if name.endswith("_seconds")},
        "steps": len(measured), "step_seconds": seconds,
        "step_times": [row["step_time"] for row in steps],
        "losses": [row["loss"] for row in steps],
        "tokens_per_second": tokens / seconds,
        "tflops": tokens / seconds * flops / 1e12,
        "planned_gib": record["planned_bytes"] / 2**30,
        "measured_gib": peak / 2**30,
        "beside_gib": (peak - record["planned_bytes"]) / 2**30,
        "start_to_first_loss_seconds": first[0] if first else None,
        # Step 1 is logged during step 2, so the first two times are exact only
        # together. The first step's time is their sum less one later step.
        "first_step_over_steady":
            sum(row["step_time"] for row in steps[:2]) / seconds - 1,
        "outside_the_plan": dict(
            match.groups() for _, line in done.lines
            if (match := RESERVE.match(line))),
        "said": [line for _, line in done.lines
                 if not STEP.match(line)][:SAID_LINES]}


def during_steps(done, clocks):
    """Returns the ranges of clocks, power and temperature between the first and
    the last logged step."""
    at = [done.start + seconds for seconds, line in done.lines
          if STEP.match(line)]
    return clocks.between(at[0], at[-1]) if at else {}


def read_json(path):
    """Returns the JSON in a file, or None if a stopped run did not write it."""
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)


def read_profile(path, kept):
    """Returns a trace's table, with count and seconds of each kernel per step.
    Compresses the trace into the file `kept`."""
    trace = read_json(path)
    if trace is None:
        return None
    kernels = collections.defaultdict(lambda: {"count": 0.0, "seconds": 0.0})
    for event in trace["traceEvents"]:
        if name := event.get("args", {}).get("kernel"):
            kernel = kernels[event["cat"] + " " + name]
            kernel["count"] += 1 / PROFILED
            kernel["seconds"] += event["dur"] * 1e-6 / PROFILED
    with open(path, "rb") as file, gzip.open(kept, "wb") as packed:
        shutil.copyfileobj(file, packed)
    return {**trace["otherData"], "kernels": dict(
        sorted(kernels.items(), key=lambda item: -item[1]["seconds"]))}


def predict(machine, run, number):
    """Returns the null device's prediction of a step, with the device profile
    that gpu-micro found for this GPU."""
    done = machine.run(
        [machine.program("qlora-run"), machine.module(number), "--simulate",
         machine.card["profile"], "--gradient-accumulation-steps",
         str(run["accumulation"]), "--log-format", "json"], 60)
    if failure := done.failure():
        raise Failure(f"prediction: {failure}")
    return json.loads(done.text[done.text.index("{"):])["predictions"][0]


def train(machine, run, number, seconds, kept=None):
    """Trains the bundle's run `number` for at most `seconds`. Returns its
    figures, from the steps done so far if the time was too short. Profiles if
    `kept` names a file for the trace."""
    record = machine.bundle["runs"][number]
    if "not_planned" in record:
        raise Failure(f"not planned: {record['not_planned']}")
    model, writing = machine.model(run["model"], seconds)
    wanted = run["warm_up"] + run["steps"]
    with tempfile.TemporaryDirectory(dir=machine.work) as out:
        trace = os.path.join(out, "trace.json")
        profile = ["--profile", trace, "--profile-warmup", str(wanted),
                   "--profile-active", str(PROFILED), "--device-profile",
                   machine.card["profile"]] if kept else []
        with Clocks(machine) as clocks:
            done = machine.run(
                [machine.program("qlora-run"), machine.module(number),
                 "--model-name-or-path", model, "--train-file",
                 machine.tokens(run), "--max-steps",
                 str(wanted + (PROFILED if kept else 0)),
                 "--gradient-accumulation-steps", str(run["accumulation"]),
                 "--logging-steps", "1", "--learning-rate", "1e-4",
                 "--output-dir", out, "--overwrite-output-dir", "--verbose",
                 *profile], seconds - writing - GRACE_SECONDS)
        steps, summary = read_steps(os.path.join(out, "metrics.jsonl"))
        table = read_json(os.path.join(out, "gemm_table.json"))
        profile = kept and read_profile(trace, kept)
    if done.failure() and (not done.is_late or len(steps) <= run["warm_up"]):
        raise Failure(f"{done.failure()} ({len(steps)} of {wanted} steps)")
    if len(steps) <= run["warm_up"]:
        raise Failure(f"{len(steps)} of {wanted} steps were logged")
    if not all(math.isfinite(row["loss"]) for row in steps):
        raise Failure("a loss is not finite")
    return {**summarise(machine, run, record, done, steps, summary),
            "writing_seconds": writing, "clocks": during_steps(done, clocks),
            "gemm_table": table, "profile": profile,
            "prediction": predict(machine, run, number)}
