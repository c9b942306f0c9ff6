#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The links between ranks, as qlora-run --calibrate measures them.

    calibration.py --tools build/bin

Two ranks of one machine have shared memory and sockets. Two ranks on different
hosts (namespaces.py) have a network; its configured rate and delay are
measured. A link that cannot be measured gives a one-line error.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from checkpoint_runs import Failure, check
from checkpoints import children_of
from host_jobs import PORT, SECRET
from namespaces import Hosts, why_not

# Kernel rates in the given device.json. With them, only links are measured.
KERNELS = {"cpu": "described", "cores": 1, "gemm_f32_gflops": 50,
           "gemm_bf16_gflops": 50, "copy_gbps": 10, "decode_gbps": 5}
# A link in an earlier device.json. Calibration keeps the entry, because these
# ranks cannot measure such a link.
WINDOW = {"message_us": 1e-3, "gbps": 1e6}
BYTES_PER_SECOND = 30e6
DELAY = 1e-3


class Folder:
    def __init__(self, tools, work):
        self.tool, self.work = os.path.join(tools, "qlora-run"), work
        self.given = os.path.join(work, "given.json")
        with open(self.given, "w") as file:
            json.dump({**KERNELS, "links": {"window": WINDOW}}, file)

    def command(self, name, *flags):
        return [self.tool, "--calibrate", os.path.join(self.work, name),
                "--device-profile", self.given, *flags]

    def links(self, name):
        with open(os.path.join(self.work, name)) as file:
            profile = json.load(file)
        links = profile.pop("links")
        check(profile == KERNELS, profile)
        return links

    def refuse(self, expected, command, **named):
        done = subprocess.run(command, capture_output=True, text=True,
                              timeout=20, **named)
        check(done.returncode == 1 and done.stderr.count("\n") == 1 and
              expected in done.stderr, "not", expected, "but", done.stderr)


def start_on(host, rank, command):
    variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0,
                 "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "10.77.0.1",
                 "MASTER_PORT": PORT, "QLORA_JOB_SECRET": SECRET}
    return host.popen(command, {k: str(v) for k, v in variables.items()},
                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def one_machine(folder):
    """Checks that shared memory is faster than sockets and that both rates are
    plausible."""
    subprocess.run(folder.command("one.json", "--gpus", "2"), check=True,
                   stdout=subprocess.DEVNULL)
    links = folder.links("one.json")
    check(set(links) == {"window", "sockets"}, links)
    for link in links.values():
        check(0.1 < link["message_us"] < 1e4 and 0.01 < link["gbps"] < 1e3,
              links)
    check(links["window"]["gbps"] > links["sockets"]["gbps"], links)


def between_hosts(folder, name, prepare):
    with Hosts(2, folder.work) as hosts:
        prepare(hosts)
        started = [start_on(host, rank, folder.command(name))
                   for rank, host in enumerate(hosts.all)]
        for process in started:
            _, text = process.communicate(timeout=30)
            check(process.returncode == 0, text)
    links = folder.links(name)
    check(set(links) == {"window", "network"} and links["window"] == WINDOW and
          links["network"]["ranks_per_node"] == 1, links)
    return links["network"]


def described_rate(folder):
    def narrow(hosts):
        for host in hosts.all:
            host.narrow(f"{8 * BYTES_PER_SECOND / 1e6:.0f}mbit")

    # The limits are wide, because bursts of a few packets are not slowed down,
    # and other processes may use this machine.
    found = 1e9 * between_hosts(folder, "rate.json", narrow)["gbps"]
    check(0.4 < found / BYTES_PER_SECOND < 1.8, found)


def described_delay(folder):
    found = between_hosts(folder, "delay.json",
                          lambda hosts: hosts.delay(DELAY))
    check(0.6 < 1e-6 * found["message_us"] / DELAY < 3, found)


def lost_rank(folder):
    """Kills a rank while both ranks measure kernels, which takes over ten
    seconds."""
    path = os.path.join(folder.work, "lost.json")
    job = subprocess.Popen([folder.tool, "--calibrate", path, "--gpus", "2"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                           text=True)
    time.sleep(0.5)
    os.kill(children_of(job.pid)[1], signal.SIGKILL)
    _, text = job.communicate(timeout=30)
    check(job.returncode != 0 and text.count("\n") == 1 and "rank 1" in text,
          text)
    check(not os.path.exists(path), "a file")


def refusals(folder):
    folder.refuse("Fix: --gpus 2 or more", folder.command("no.json"))
    folder.refuse("cannot write '", folder.command("none/no.json", "--gpus",
                                                   "2"))
    folder.refuse("--calibrate expects one file to write, NAME.json",
                  [folder.tool, "--calibrate", "train.so", "--gpus", "2"])
    folder.refuse("not --device cuda",
                  folder.command("no.json", "--gpus", "2", "--device", "cuda"))
    folder.refuse("none.json: cannot be read", [
        folder.tool, "--calibrate", "--gpus", "2", "--device-profile",
        "none.json"], cwd=folder.work)


def uneven_machines(folder):
    """Starts two ranks on one host and one on another: each prints why it
    fails."""
    started = [subprocess.Popen(
        folder.command("no.json"), stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3",
             "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": str(local),
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT),
             "QLORA_JOB_SECRET": SECRET})
        for rank, local in enumerate((2, 2, 1))]
    for process in started:
        _, text = process.communicate(timeout=30)
        check(process.returncode == 1 and text.count("\n") == 1 and
              "every machine, but of 3 ranks this one has 2" in text, text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    arguments = parser.parse_args()
    cases = [one_machine, lost_rank, refusals, uneven_machines]
    if reason := why_not():
        print(f"calibration.py: no hosts: {reason}")
    else:
        cases += [described_rate, described_delay]
    for function in cases:
        with tempfile.TemporaryDirectory() as work:
            start = time.monotonic()
            function(Folder(os.path.abspath(arguments.tools), work))
            print(f"{function.__name__.replace('_', ' '):22} as it should be "
                  f"({time.monotonic() - start:.1f} s)", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"calibration.py: {failure}")
