# SPDX-License-Identifier: MIT

"""Part nccl of gpu.sh: ranks that share this GPU (--ranks-per-gpu), with this
machine's NCCL.

  pairs  trains a golden case on each layout of `nccl` in gpu_shapes.json, and
         compares it with PyTorch's tensors
  ends   kills or stops one of two ranks, and measures how long the other rank
         continues
"""

import concurrent.futures
import importlib.util
import json
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from gpu_bundle import GOLDENS, REPOSITORY, Failure

GOLDENS_PY = os.path.join(REPOSITORY, "tests", "e2e", "goldens.py")
JOBS = 3  # layouts that are trained at the same time
# Results that goldens.py must compare.
COMPARED = ("logits", "loss", "gradient", "final adapter")
# Axes of --parallel whose ranks train on the same rows.
SAME_ROWS = ("tp", "cp", "pp")
TIMEOUT = 12  # --ddp-timeout in seconds, with a stopped rank
KILLED_LIMIT, STOPPED_LIMIT = 5, TIMEOUT + 3
START_LIMIT = 60  # seconds until steps are logged
ENDS = (("rank 1 killed", signal.SIGKILL, 1, KILLED_LIMIT),
        ("rank 0 killed", signal.SIGKILL, 0, KILLED_LIMIT),
        ("rank 1 stopped", signal.SIGSTOP, 1, STOPPED_LIMIT))


def axes_of(layout):
    """Returns a layout's parallel axes and sizes: {"tp": 2} for "tp=2"."""
    text = layout.get("compile", {}).get("parallel", "")
    return {axis: int(number) for axis, number in
            (part.split("=") for part in filter(None, text.split(",")))}


def ranks_of(layout):
    """Returns the number of ranks: data-parallel ranks times the sizes of the
    axes whose ranks have the same rows."""
    with open(os.path.join(GOLDENS, layout["case"], "case.json")) as file:
        ranks = layout.get("ranks") or json.load(file).get("ranks", 1)
    axes = axes_of(layout)
    return ranks * math.prod(axes.get(axis, 1) for axis in SAME_ROWS)


def pair_command(machine, name, layout):
    parallel = ",".join(f"{axis}={number}" for axis, number in
                        axes_of(layout).items() if axis in SAME_ROWS)
    return [sys.executable, GOLDENS_PY, "--tools",
            os.path.join(machine.folder, "bin"), "--target", "cuda",
            "--modules", os.path.join(machine.folder, "nccl", name),
            "--library-path", machine.environment["LD_LIBRARY_PATH"],
            *(["--ranks", str(layout["ranks"])] if "ranks" in layout else []),
            *(["--parallel", parallel] if parallel else []),
            f"--run-flag=--ranks-per-gpu={ranks_of(layout)}",
            "--run-flag=--ddp-timeout=60", layout["case"]]


def judge_pair(done):
    """Returns goldens.py's summary of what it compared, and why the pair
    failed, or None if it passed."""
    line = re.search(r"^(ok  |FAIL|skip) \S+: (.*)$", done.text, re.M)
    if not line:
        return "", done.failure() or "it said nothing"
    if line[1] != "ok  " or done.failure():
        return "", f"{line[1]} {line[2]}: {done.failure()}"[:400]
    missing = [what for what in COMPARED if f"{what} " not in line[2]]
    return line[2], (f"{', '.join(missing)}: not compared" if missing else None)


def compare_pairs(unit, machine, report, clock):
    layouts = list(machine.shapes["nccl"].items())[:unit.first]

    def run(item):
        return machine.run(pair_command(machine, *item), clock.left(),
                           os.environ)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        try:
            for (name, layout), done in zip(layouts, pool.map(run, layouts)):
                compared, wrong = judge_pair(done)
                report.add("nccl", f"{name} {layout['case']}",
                           f"s, {ranks_of(layout)} ranks", done.seconds,
                           verdict="failed" if wrong else "passed",
                           note=wrong or compared)
        except BaseException:  # the script is stopped
            pool.shutdown(wait=False, cancel_futures=True)
            machine.stop_running()
            raise


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class TwoRanks:
    """Endless training by two ranks without a launcher. A rank ends only
    because of faults that it detects itself."""

    def __init__(self, machine, case, module, flags):
        self.out = tempfile.mkdtemp(dir=machine.work)
        secret, port = secrets.token_hex(16), str(free_port())
        self.ranks, self.logs = [], []
        for rank in ("0", "1"):
            environment = {
                **machine.environment, "RANK": rank, "WORLD_SIZE": "2",
                "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                "QLORA_JOB_SECRET": secret}
            self.logs.append(os.path.join(self.out, f"log.{rank}"))
            with open(self.logs[-1], "w") as log:
                self.ranks.append(subprocess.Popen(
                    [machine.program("qlora-run"), module, "--config",
                     os.path.join(GOLDENS, case, "train.yaml"), "--max-steps",
                     "1000000", "--logging-steps", "1", "--save-strategy",
                     "no", "--ranks-per-gpu", "2", "--output-dir",
                     os.path.join(self.out, "out"), *flags],
                    stdout=log, stderr=log, env=environment))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGCONT)
                rank.kill()
            rank.wait()
        shutil.rmtree(self.out)

    def said(self, rank):
        with open(self.logs[rank]) as log:
            lines = [line.strip() for line in log if line.strip()]
        return lines[-1][:300] if lines else "nothing"

    def wait_for_steps(self, seconds):
        """Waits until a few steps are logged."""
        metrics = os.path.join(self.out, "out", "metrics.jsonl")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if os.path.exists(metrics):
                with open(metrics) as lines:
                    if sum('"loss"' in line for line in lines) >= 3:
                        return
            for rank, process in enumerate(self.ranks):
                if process.poll() is not None:
                    raise Failure(f"rank {rank} ended before its steps: "
                                  f"{self.said(rank)}")
            time.sleep(0.1)
        raise Failure(f"no steps after {seconds:.0f} s: {self.said(0)}")

    def end_of_other(self, victim, number, limit):
        """Sends the signal `number` to the rank `victim`. Returns the other
        rank's exit code (None if it still runs after `limit` seconds) and the
        seconds until it ended."""
        os.kill(self.ranks[victim].pid, number)
        start, other = time.monotonic(), self.ranks[1 - victim]
        try:
            code = other.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        return code, time.monotonic() - start


def time_ends(machine, report, clock):
    name, layout = next(
        item for item in machine.shapes["nccl"].items()
        if ranks_of(item[1]) == 2 and not axes_of(item[1]))
    module = os.path.join(machine.folder, "nccl", name, layout["case"] + ".so")
    for title, number, victim, limit in ENDS:
        flags = ["--ddp-timeout",
                 str(TIMEOUT if number == signal.SIGSTOP else 60)]
        what = "s until the other ends"
        with TwoRanks(machine, layout["case"], module, flags) as ranks:
            try:
                ranks.wait_for_steps(min(START_LIMIT, clock.left()))
            except Failure as failure:
                report.fail("nccl", title, str(failure))
                continue
            code, seconds = ranks.end_of_other(victim, number, limit)
            said = ranks.said(1 - victim)
        if code is None:
            said = f"it still runs; {said}"
        report.add("nccl", title, what, seconds,
                   verdict="passed" if code else "failed",
                   note=f"at most {limit}; exit code {code}: {said}")


def nccl(unit, machine, report, clock, options):
    missing = (machine.card["nccl"] if isinstance(machine.card["nccl"], str)
               else "" if importlib.util.find_spec("numpy")
               else f"numpy is not installed for {sys.executable}")
    if missing:
        report.skip("nccl", "", missing)
        return
    compare_pairs(unit, machine, report, clock)
    time_ends(machine, report, clock)
