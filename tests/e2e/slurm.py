#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Runs the demo under Slurm, on two nodes (slurm_cluster.py).

    slurm.py --tools build/bin [PART ...]

Two ranks of srun leave the bytes of qlora-run --gpus 2, on one node or on two.
The script of docs/launchers.md resumes automatically, to the bytes of an
uninterrupted run. A job that cannot continue ends in seconds, with one line
that says why, and leaves no process. Needs munge, Slurm and the requirements
of hosts.py.
"""

import argparse
import os
import re
import signal
import sys
import tempfile
import time

from checkpoint_runs import DEMO, Failure, Runs, check, steps_of, verify
from host_jobs import said_by
from launcher_page import script
from namespaces import why_not
from slurm_cluster import Cluster, missing_programs

STEPS = 42
SHORT = ("--max-steps", "14")
ENDLESS = ("--max-steps", "100000")
# Periodic checkpoints are never due, so every checkpoint was requested.
NOT_DUE = ("--save-steps", "1000")
SOON = 10
SUBSTITUTES = (("--nodes 2 --ntasks-per-node 8 --gpus-per-node 8",
                "--nodes 2 --ntasks-per-node 1"),)
PARTS = []


def part(function):
    PARTS.append(function)
    return function


def last_logged(folder):
    try:
        with open(os.path.join(folder, "metrics.jsonl")) as file:
            return max(map(int, re.findall(r'"step": ?(\d+)', file.read())),
                       default=0)
    except FileNotFoundError:
        return 0


def until_step(cluster, folder, step):
    cluster.wait(f"step {step}", lambda: last_logged(folder) >= step)


def errors_of(process, name):
    """Waits for a process. Returns its error lines and its output."""
    text = said_by(process, name, SOON)
    check(process.returncode != 0, name, "has not failed\n", text)
    return [line for line in text.splitlines()
            if line.startswith("qlora-run: error")], text


def check_clean(cluster, folder):
    for step in steps_of(folder):
        verify(os.path.join(folder, f"checkpoint-{step}"))
    cluster.wait("the end of all ranks", lambda: not cluster.all_ranks(), 5)
    cluster.wait("an empty queue", lambda: not cluster.call(
        "squeue", "--noheader").strip(), 5)


@part
def same_bytes(cluster, runs):
    """Runs two ranks in a job of two nodes: one rank on each node, then both
    ranks on the second node, with the variables of PMI."""
    for name, flags in (("apart", ("--nodes", "2", "--ntasks", "2")),
                        ("together", ("--nodelist", "node1", "--nodes", "1",
                                      "--ntasks", "2", "--mpi", "pmi2"))):
        folder = runs.folder(name)
        text = cluster.call("salloc", "--nodes", "2", "--ntasks-per-node", "2",
                            "srun", *flags, *runs.command(folder, *SHORT))
        check("guessable secret" in text, "no word of the secret\n", text)
        runs.compare(folder, "--gpus", "2", *SHORT)
        check_clean(cluster, folder)


@part
def shell_of_salloc(cluster, runs):
    """Starts qlora-run in a shell of salloc, which is one process but has the
    variables of a job with two ranks."""
    folder = runs.folder("shell")
    text = cluster.call("salloc", "--ntasks", "2", "srun", "--interactive",
                        "--preserve-env", *runs.command(folder, *SHORT))
    check("8 rows x 1 rank" in text and steps_of(folder)[-1] == 14, text)
    check_clean(cluster, folder)


@part
def killed_rank(cluster, runs):
    folder = runs.folder("killed")
    process = cluster.start("srun", "--nodes", "2", "--ntasks", "3",
                            *runs.command(folder, *ENDLESS))
    until_step(cluster, folder, 4)
    ranks = cluster.ranks(1)
    check(len(ranks) == 1, "node1 runs", ranks)
    os.kill(ranks[0], signal.SIGKILL)
    lines, text = errors_of(process, "killed rank")
    check(len(lines) == 2 and len(set(lines)) == 1 and re.match(
        r"qlora-run: error: rank 2 \(node1\) ended without an error message",
        lines[0]), "not the same line of both others:\n", text)
    check_clean(cluster, folder)


@part
def wrong_size(cluster, runs):
    program = runs.compile("pieces.so", os.path.join(DEMO, "model"),
                           "--parallel", "fsdp=2")
    folder = runs.folder("wrong")
    process = cluster.start("srun", "--nodes", "2", "--ntasks", "3",
                            *runs.command(folder, program=program))
    lines, text = errors_of(process, "wrong size")
    check(len(lines) == 3 and len(set(lines)) == 1
          and "but 3 were started; start a multiple of 2" in lines[0],
          "not the same line of all:\n", text)
    check_clean(cluster, folder)


def submit(cluster, runs, folder, *flags):
    path = folder + ".sh"
    with open(path, "w") as file:
        file.write(script("Slurm", SUBSTITUTES, runs, folder).replace(
            "--resume-from-checkpoint true",
            " ".join(("--resume-from-checkpoint true", *flags))))
    return cluster.call("sbatch", "--parsable", "--output", folder + ".out",
                        path).strip()


@part
def goes_on(cluster, runs):
    """Resumes after a requested checkpoint, the time limit, a pre-emption and a
    killed rank."""
    folder = runs.folder("requeued")
    job = submit(cluster, runs, folder, *NOT_DUE)
    until_step(cluster, folder, 4)
    cluster.call("scancel", "--signal", "USR1", job)
    cluster.wait("a checkpoint", lambda: steps_of(folder))
    until_step(cluster, folder, steps_of(folder)[0] + 4)
    stops = []
    for stop in (lambda: cluster.call("scancel", "--signal", "TERM", job),
                 lambda: cluster.call("scontrol", "requeue", job),
                 lambda: os.kill(cluster.ranks(1)[0], signal.SIGKILL)):
        check(cluster.state(job) == "RUNNING", cluster.state(job))
        stop()
        cluster.wait("requeue", lambda: cluster.state(job) == "PENDING")
        check(not cluster.all_ranks(), "a job in the queue has ranks")
        stops.append(steps_of(folder)[-1])
        # Start the requeued job now instead of after two minutes. Wait first: a
        # node refuses to start a job again within one second of its end.
        time.sleep(1.1)
        cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now")
        until_step(cluster, folder, stops[-1] + 4)
    cluster.wait("the end of the job", lambda: not cluster.state(job), 60)
    with open(folder + ".out") as file:
        text = file.read()
    starts = [int(step) for step in
              re.findall(r"resumes from .*after step (\d+)", text)]
    check(starts == stops and len(steps_of(folder)) == 4, starts, stops,
          steps_of(folder), text)
    check("guessable" not in text, text)
    runs.compare(folder, "--gpus", "2", *NOT_DUE)
    check_clean(cluster, folder)


@part
def cancelled(cluster, runs):
    folder = runs.folder("cancelled")
    job = submit(cluster, runs, folder, *ENDLESS, *NOT_DUE)
    until_step(cluster, folder, 4)
    cluster.call("scancel", job)
    check_clean(cluster, folder)
    with open(folder + ".out") as file:
        text = file.read()
    stopped = re.search(r"interrupted after step (\d+) of", text)
    check(stopped and steps_of(folder) == [int(stopped.group(1))],
          steps_of(folder), text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("parts", nargs="*")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"slurm.py: skipped: {reason}")
        return
    missing = missing_programs()
    check(not missing, "missing:", ", ".join(missing),
          "(scripts/install.sh --tests)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(os.path.abspath(arguments.tools), work, STEPS)
        with Cluster(work) as cluster:
            for function in PARTS:
                if arguments.parts and function.__name__ not in arguments.parts:
                    continue
                start = time.monotonic()
                function(cluster, runs)
                print(f"{function.__name__.replace('_', ' '):16} as it should "
                      f"be ({time.monotonic() - start:.1f} s)", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"slurm.py: {failure}")
