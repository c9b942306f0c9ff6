#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Trains with a base sharded over hosts (--parallel fsdp=N).

    sudo bench/shards_hosts.py [--shape llama3.2-1b] [--ranks 4] [--length 128]
                               [--compute bfloat16] [--steps 3] [--work DIR]

Each rank is on a host of its own: a network namespace with its own processes,
started with torchrun's variables. Prints each rank's private memory and the
planned bytes. Fails if a rank plans more than its shard of the base (including
embedding and head in 16 bits), or uses more memory than planned.
"""

import argparse
import os
import sys
import time

import cpu_machine
import ours
from shapes import REPOSITORY, SHAPES, write_batch, write_config, write_model

sys.path.append(os.path.join(REPOSITORY, "tests", "e2e"))
from namespaces import Hosts  # noqa: E402

SECRET, PORT = "0123456789abcdef" * 2, 29500
# Allowed bytes above 1/N of the base: fsdp pads shards to 64 bytes, and does
# not shard vectors.
SLACK = 2 << 20


def environment(hosts, rank):
    return {"RANK": str(rank), "WORLD_SIZE": str(len(hosts.all)),
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": hosts.all[0].address, "MASTER_PORT": str(PORT),
            "QLORA_JOB_SECRET": SECRET, "OMP_NUM_THREADS": "1"}


def private_of_ranks(options, module, data):
    """Trains on `options.ranks` hosts. Returns the peak private bytes of each
    rank."""
    words = ours.train_words(module, data, options.steps, ())
    with Hosts(options.ranks, options.work) as hosts:
        running = [host.popen(words, environment(hosts, rank),
                              stdout=open(f"{module}.{rank}.log", "w"),
                              stderr=open(f"{module}.{rank}.err", "w"))
                   for rank, host in enumerate(hosts.all)]
        most = [0] * options.ranks
        while any(process.poll() is None for process in running):
            for rank, host in enumerate(hosts.all):
                most[rank] = max([most[rank],
                                  *map(cpu_machine.private_bytes, host.pids())])
            time.sleep(0.1)
        for rank, process in enumerate(running):
            if process.returncode:
                with open(f"{module}.{rank}.err") as errors:
                    raise SystemExit(f"rank {rank}: {errors.read()}")
    return most


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama3.2-1b")
    parser.add_argument("--compute", default="bfloat16")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    options = parser.parse_args()
    folder = os.path.join(options.work, options.shape)
    config = write_config(folder, SHAPES[options.shape])
    write_model(folder, SHAPES[options.shape])
    data = os.path.join(folder, "shards.data.safetensors")
    write_batch(data, config["vocab_size"], options.length,
                count=options.ranks)
    _, plan = ours.planned(folder, "hosts-whole", options.compute,
                           length=options.length)
    module, pieces = ours.planned(folder, "hosts-pieces", options.compute,
                                  "--parallel", f"fsdp={options.ranks}",
                                  length=options.length)
    most = private_of_ranks(options, module, data)
    layers, base = ours.gathered(pieces), plan["arenas"]["frozen"]
    print(f"{options.shape}, {options.compute}, {options.ranks} hosts of one "
          f"rank, T = {options.length}, MiB\n"
          f"  whole base {base / 2**20:.1f}, of which a rank plans "
          f"{pieces['arenas']['frozen'] / 2**20:.1f}, and {layers / 2**20:.1f} "
          "of others' at most\n"
          f"  planned {pieces['total_bytes'] / 2**20:.1f}, private at most "
          f"{', '.join(f'{bytes / 2**20:.1f}' for bytes in most)}")
    failures = []
    if pieces["arenas"]["frozen"] > base / options.ranks + SLACK:
        failures.append("a rank plans more than its part of the base")
    if max(most) > pieces["total_bytes"] + pieces["process_bytes"]:
        failures.append("a rank holds more than its plan and its process")
    return ours.conclude("each host holds its part", failures)


if __name__ == "__main__":
    raise SystemExit(main())
