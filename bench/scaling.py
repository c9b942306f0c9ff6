#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Speed of one rank on one core, of two ranks on two, and of two separate runs.

Two separate runs show what the machine itself loses if both cores are busy.

    bench/scaling.py [--shape smollm2-135m] [--compute bfloat16]
                     [--rounds 3] [--steps 4] [--work DIR]

Each rank has one micro-batch per step, so that two ranks process twice the
tokens. Prints tokens/s, the fraction of a step in which a rank waits for
another, and the proportional resident memory of all ranks, which share one copy
of the frozen base. Fails if two ranks use more memory than one rank, plus a
rank's arenas without the base, plus 64 MiB.
"""

import argparse
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import cpu_machine
import ours
from shapes import (LENGTH, REPOSITORY, SHAPES, write_batch, write_config,
                    write_model)

TARGET, MOST_EXPOSED = 1.9, 0.01
# Kinds of commands in a profile that count as communication.
COMMUNICATION = ("sums over ranks", "wait")


def cores():
    return sorted(os.sched_getaffinity(0))


class Ranks:
    """Runs of a module on the cores `on`, with one rank per core."""

    def __init__(self, module, data, on):
        self.module, self.data = module, data
        self.prefix = ("taskset", "-c", ",".join(map(str, on)))
        self.flags = ("--gpus", str(len(on)))
        self.runs, self.proportional = [], 0

    def watch(self, child):
        """Records memory after each logged step: then all memory that a step
        touches is resident."""
        self.proportional = max(self.proportional,
                                cpu_machine.tree_proportional_bytes(child.pid))

    def take_turn(self, steps):
        self.runs.append(ours.train(self.module, self.data, steps, *self.flags,
                                    prefix=self.prefix, watch=self.watch))

    def rate(self):
        return ours.median_rate(self.runs)

    def exposed(self):
        trace = ours.profile(self.module, self.data, *self.flags,
                             prefix=self.prefix)
        return sum(row["share"] for row in trace["otherData"]["rows"]
                   if row["kind"] in COMMUNICATION
                   and row["queue"] in ("compute", "host"))


class Processes(Ranks):
    """Runs whose ranks have one thread each, and may use all cores."""

    def __init__(self, module, data, ranks):
        super().__init__(module, data, [])
        self.prefix = ()
        self.flags = ("--gpus", str(ranks), "--threads", "1")
        self.private = 0

    def watch(self, child):
        children = cpu_machine.children(child.pid)
        self.private = max([self.private,
                            *map(cpu_machine.private_bytes, children)])


class Apart:
    """Separate runs at the same time, one per core."""

    def __init__(self, module, data, on):
        self.runs = []
        for core in on:
            own = f"{module}.{core}.so"
            shutil.copyfile(module, own)
            self.runs.append(Ranks(own, data, [core]))

    def take_turn(self, steps):
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda run: run.take_turn(steps), self.runs))

    def rate(self):
        return sum(run.rate() for run in self.runs)


def measure(shape, compute, profile, work, length=LENGTH, rounds=3, steps=4):
    """Measures one rank, two ranks and two separate runs. Returns JSON."""
    folder = os.path.join(work, shape)
    config = write_config(folder, SHAPES[shape])
    write_model(folder, SHAPES[shape])
    data = os.path.join(folder, "scaling.data.safetensors")
    write_batch(data, config["vocab_size"], length, count=2)
    module, plan = ours.planned(folder, "scaling", compute,
                                "--device-profile", profile, length=length)
    on = cores()[:2]
    one, two = Ranks(module, data, on[:1]), Ranks(module, data, on)
    apart = Apart(module, data, on)
    for _ in range(rounds):
        for ranks in (one, two, apart):
            ranks.take_turn(steps)
    of_a_rank = plan["total_bytes"] - plan["arenas"]["frozen"]
    most = one.proportional + of_a_rank + ours.MEMORY_SLACK
    result = {
        "name": "scaling", "shape": shape, "compute": compute,
        "rates": [one.rate(), two.rate(), apart.rate()],
        "ratio": two.rate() / one.rate(), "exposed": two.exposed(),
        "proportional": [one.proportional, two.proportional],
        "planned": plan["total_bytes"], "of_a_rank": of_a_rank,
        "failures": []}
    if two.proportional > most:
        result["failures"].append(
            f"{two.proportional} bytes in two ranks, of {most}")
    result["verdicts"] = [
        (f"two ranks are {TARGET}x one", result["ratio"] >= TARGET),
        (f"exposed communication is at most {MOST_EXPOSED:.0%}",
         result["exposed"] <= MOST_EXPOSED),
        ("two ranks hold the base once", not result["failures"])]
    return result


def text_of(result):
    """Returns Markdown."""
    one, two, apart = result["rates"]
    mib = [f"{bytes_ / 2**20:.0f}" for bytes_ in result["proportional"]]
    lines = [
        f"{result['shape']}, {result['compute']}, one core per rank", "",
        "| ranks | tok/s | ratio | exposed communication | PSS of all, MiB | "
        "planned for a rank, MiB |", "|---|---|---|---|---|---|",
        f"| 1 | {one:.1f} | | | {mib[0]} | {result['planned'] / 2**20:.0f} |",
        f"| 2 | {two:.1f} | {result['ratio']:.3f} | {result['exposed']:.2%} | "
        f"{mib[1]} | of its own: {result['of_a_rank'] / 2**20:.0f} |",
        f"| two runs apart | {apart:.1f} | {apart / one:.3f} | | | |", ""]
    return "\n".join(lines + [f"* {'met' if met else 'missed'}: {what}"
                              for what, met in result["verdicts"]])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--compute", default="bfloat16")
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    options = parser.parse_args()
    if len(cores()) < 2:
        print("skip scaling.py: one core")
        return 0
    profile = cpu_machine.calibrate(options.work)
    result = measure(options.shape, options.compute, profile, options.work,
                     options.length, options.rounds, options.steps)
    return ours.conclude(text_of(result), result["failures"])


if __name__ == "__main__":
    raise SystemExit(main())
