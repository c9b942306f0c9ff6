# SPDX-License-Identifier: MIT

"""Runs the peer (baseline_cpu.py) as a process that loads its model once, and
then takes turns with qlora-run."""

import json
import os
import statistics
import subprocess

import cpu_machine
from shapes import REPOSITORY

SCRIPT = os.path.join(REPOSITORY, "bench", "baseline_cpu.py")
COMPUTES = {"float32": "f32", "bfloat16": "bf16"}


class PeerFailed(Exception):
    pass


class Peer:
    """A baseline_cpu.py process with NF4 weights and one compute type."""

    def __init__(self, python, model, adapter, data, compute):
        self.turns, self.expert_seconds = [], {}
        self.process = subprocess.Popen(
            [python, SCRIPT, "--model", model, "--adapter", adapter, "--data",
             data, "--compute", COMPUTES[compute]], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=cpu_machine.peer_environment())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise PeerFailed(f"it ended with {self.process.wait()}")
        values = json.loads(line)
        if "error" in values:
            raise PeerFailed(values["error"])
        return values

    def wait_until_ready(self):
        self.expert_seconds = self.answer()["expert_seconds"]

    def take_turn(self, steps):
        """Runs `steps` steps. rate() ignores the very first step."""
        self.process.stdin.write(f"steps {steps}\n")
        self.process.stdin.flush()
        self.turns.append(self.answer())

    def evaluate(self):
        """Returns the loss of the next batch, as a list of one. Called before
        any training, for the first batch."""
        self.process.stdin.write("evaluate\n")
        self.process.stdin.flush()
        return self.answer()["losses"]

    def column(self, name):
        """Returns the value `name` of each step of all turns."""
        return [value for turn in self.turns for value in turn[name]]

    def losses(self):
        return self.column("losses")

    def rate(self, unit="tokens", of_median=True):
        """Returns `unit` per second: the median over steps, or, if steps differ
        in size (of_median is False), the total."""
        counts, seconds = self.column(unit)[1:], self.column("seconds")[1:]
        if not of_median:
            return sum(counts) / sum(seconds)
        return statistics.median(count / second for count, second in
                                 zip(counts, seconds))

    def peak(self):
        return max(turn["peak"] for turn in self.turns)
