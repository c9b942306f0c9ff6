#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""TensorBoard's own reader finds in our event files what metrics.jsonl has.

    watching.py --tools build/bin

A run that is stopped and resumed has one curve: the reader drops values logged
after the checkpoint. One warning names a rank that is slow repeatedly.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading

from checkpoint_runs import SAVE_STEPS, Failure, Runs, check
from checkpoints import children_of
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator)


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def tags(tag, value):
    """Returns (tag, value) pairs of a metric: a pair for each rank if the value
    is a list."""
    if not isinstance(value, list):
        return [(tag, value)]
    return [(f"{tag}/{rank}", one) for rank, one in enumerate(value)]


def expected(folder):
    """Returns the values in metrics.jsonl by (tag, step), with tags as
    transformers names them."""
    values = {}
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        for line in map(json.loads, file):
            for name, value in line.items():
                tag = ("eval/" + name[5:] if name.startswith("eval_")
                       else "train/" + name)
                if name != "step":
                    values.update(((at, line["step"]), as_float32(one))
                              for at, one in tags(tag, value))
    return values


def read(folder):
    """Returns the values that TensorBoard reads from the output folder's only
    run."""
    runs = os.path.join(folder, "runs")
    names = os.listdir(runs)
    check(len(names) == 1, names)
    events = EventAccumulator(os.path.join(runs, names[0]))
    events.Reload()
    return {(tag, event.step): event.value
            for tag in events.Tags()["scalars"]
            for event in events.Scalars(tag)}


def watch_cards(runs):
    """Checks the GPU metrics of each rank. The platform's NVML reports 90 % and
    300 W for the first GPU, 91 % and 301 W for the second."""
    runs.compile_for_cards("cuda.so")
    folder = runs.folder("cards")
    runs.run(folder, "--report-to", "tensorboard", "--gpus", "2",
             program="cuda.so", environment=runs.cards(2))
    found, wanted = read(folder), expected(folder)
    check(found == wanted, sorted(set(found.items()) ^ set(wanted.items())))
    for rank in (0, 1):
        for name, value in (("utilization", 90), ("power_watts", 300)):
            tag = f"train/rank_gpu_{name}/{rank}"
            check(found.get((tag, 4)) == value + rank, tag, found)
        check(found.get((f"train/rank_memory_bytes/{rank}", 4), 0) > 1e6, found)
    with open(os.path.join(folder, "report.html")) as file:
        check(file.read().count('"startsAtZero":') == 7, "the charts of GPUs")


def hold_up(job, rank, ended):
    """Stops a rank for two thirds of the time."""
    while not ended.wait(0.02):
        for process in children_of(job.pid)[rank:rank + 1]:
            with contextlib.suppress(ProcessLookupError):  # the rank has ended
                os.kill(process, signal.SIGSTOP)
                ended.wait(0.04)
                os.kill(process, signal.SIGCONT)


def name_straggler(runs):
    folder = runs.folder("slow")
    job = subprocess.Popen(
        runs.command(folder, "--gpus", "2", "--max-steps", "400"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ended = threading.Event()
    holder = threading.Thread(target=hold_up, args=(job, 1, ended))
    holder.start()
    named = [line for line in job.stderr if "x slower than" in line
             and not job.send_signal(signal.SIGTERM)]
    job.wait()
    ended.set()
    holder.join()
    check(len(named) == 1 and "rank 1 (" in named[0]
          and "x slower than the median rank for 12 steps" in named[0], named)
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        times = [line["rank_step_time"] for line in map(json.loads, file)
                 if "rank_step_time" in line]
    check(sum(slow > 1.2 * fast > 0 for fast, slow in times) >= 3, times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(os.path.abspath(arguments.tools), work, 4 * SAVE_STEPS)
        folder = runs.folder("watched")
        flags = ("--report-to", "tensorboard")
        runs.run(folder, *flags)
        found, wanted = read(folder), expected(folder)
        check(found == wanted, sorted(set(found.items()) ^ set(wanted.items())))
        check(("train/loss", 4) in found and ("eval/loss", 0) in found, found)
        # Repeat steps 3 and 4. The new values must replace the old ones.
        for step in (3, 4):
            shutil.rmtree(os.path.join(folder,
                                       f"checkpoint-{step * SAVE_STEPS}"))
        runs.run(folder, *flags, "--resume-from-checkpoint", "latest")
        found, wanted = read(folder), expected(folder)
        check(found == wanted, sorted(set(found.items()) ^ set(wanted.items())))
        with open(os.path.join(folder, "trainer_log.jsonl")) as file:
            steps = [json.loads(line)["current_steps"] for line in file]
        check(steps == sorted(steps) and steps[-1] == 4 * SAVE_STEPS, steps)
        with open(os.path.join(folder, "report.html")) as file:
            check(file.read().count('"startsAtZero":') == 5,
                  "the report's charts")
        watch_cards(runs)
        name_straggler(runs)
    print("watching  TensorBoard reads what metrics.jsonl has, also resumed")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"watching.py: {failure}")
