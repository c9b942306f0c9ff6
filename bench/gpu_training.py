# SPDX-License-Identifier: MIT

"""One training run of a bundle's module on this machine, and its figures."""

import json
import math
import os
import re
import statistics
import tempfile

from gpu_bundle import Failure
from gpu_machine import GRACE_SECONDS
from work import work_per_token

RESERVE = re.compile(r"^\s*(\S.*?)\s{2,}(\S+ \S+)\s+beside the plan$")


def lora_rank(machine, run):
    return {**machine.shapes["compile"], **run.get("compile", {})}["lora_r"]


def read_steps(path):
    """The logged steps, and the summary at the end or {}."""
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
    """Figures of a run by name; bytes of the card, seconds of the host."""
    measured = steps[run["warm_up"]:]
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
        "measured_over_planned": peak / record["planned_bytes"],
        "start_to_first_loss_seconds": first[0] if first else None,
        "first_step_over_steady": steps[0]["step_time"] / seconds,
        "beside_the_plan": dict(
            match.groups() for _, line in done.lines
            if (match := RESERVE.match(line)))}


def train(machine, run, number, seconds):
    """Figures of entry `number` of the bundle's runs, within `seconds`. A run
    that was stopped at its deadline has the steps that it did."""
    record = machine.bundle["runs"][number]
    if "not_planned" in record:
        raise Failure(f"not planned: {record['not_planned']}")
    model, writing = machine.model(run["model"], seconds)
    wanted = run["warm_up"] + run["steps"]
    with tempfile.TemporaryDirectory(dir=machine.work) as out:
        done = machine.run(
            [machine.program("qlora-run"), machine.module(number),
             "--model-name-or-path", model, "--train-file",
             machine.tokens(run), "--max-steps", str(wanted),
             "--gradient-accumulation-steps", str(run["accumulation"]),
             "--logging-steps", "1", "--learning-rate", "1e-4",
             "--output-dir", out, "--overwrite-output-dir", "--verbose"],
            seconds - writing - GRACE_SECONDS)
        steps, summary = read_steps(os.path.join(out, "metrics.jsonl"))
    if done.failure() and (not done.is_late or len(steps) <= run["warm_up"]):
        raise Failure(f"{done.failure()} ({len(steps)} of {wanted} steps)")
    if len(steps) <= run["warm_up"]:
        raise Failure(f"{len(steps)} of {wanted} steps were logged")
    if not all(math.isfinite(row["loss"]) for row in steps):
        raise Failure("a loss is not finite")
    figures = summarise(machine, run, record, done, steps, summary)
    figures["writing_seconds"] = writing
    return figures
