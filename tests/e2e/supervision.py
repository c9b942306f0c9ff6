#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The examples of docs/launchers.md, with a rank that is killed.

    supervision.py --tools build/bin

torchrun and mpirun start the demo on two ranks with the commands of the page,
except the number of ranks and the host names; a rank is killed after a
checkpoint. The launcher, or the loop around it, restarts all, and the adapter
has the bytes of an uninterrupted run. Needs both launchers.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

from checkpoint_runs import SAVE_STEPS, Failure, Runs, check, steps_of
from launcher_page import script

STEPS = 120
SUBSTITUTES = {
    "torchrun": (("--nproc_per_node 8", "--nproc_per_node 2"),
                 # Debian's torch 1.13 needs -r and -t in Python 3.11.
                 ("torchrun ", "torchrun -r 1 -t 1 --log_dir logs ")),
    "mpirun": (("-np 16 --hostfile hosts",
                "-np 2 --allow-run-as-root --oversubscribe"),),
}


def ranks_in(folder):
    """Returns the processes of qlora-run that write to the folder."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"qlora-run") and folder.encode() in words:
            found.append(int(process))
    return found


def try_launcher(launcher, runs):
    folder = runs.folder(launcher)
    process = subprocess.Popen(
        ["bash", "-c", script(launcher, SUBSTITUTES[launcher], runs, folder)],
        cwd=runs.work,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "QLORA_JOB_SECRET": os.urandom(16).hex()})
    deadline = time.monotonic() + 60
    while (len(steps_of(folder)) < 3 and process.poll() is None
           and time.monotonic() < deadline):
        time.sleep(0.01)
    ranks = ranks_in(folder)
    check(len(ranks) == 2, launcher, "runs", len(ranks), "ranks")
    os.kill(ranks[-1], signal.SIGKILL)
    out, _ = process.communicate(timeout=120)
    check(process.returncode == 0, launcher, process.returncode, out)
    check("resumes from" in out, launcher, "did not resume\n", out)
    runs.compare(folder, "--gpus", "2")
    print(f"{launcher:9} a killed rank: started again, the same bytes")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(os.path.abspath(arguments.tools), work, STEPS)
        check(STEPS > 6 * SAVE_STEPS, "too few steps to be killed in")
        for launcher in SUBSTITUTES:
            try_launcher(launcher, runs)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"supervision.py: {failure}")
