#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""A resumed run has the bytes of an uninterrupted one, with every optimizer and
from every first adapter that changes the base. With every optimizer two ranks
have the bytes of one rank that accumulates twice as many micro-batches. So do
two ranks that shard the updates, if the optimizer's updates can be sharded. A
program compiled for one optimizer is refused with another.

    optimizers.py --tools build/bin
"""

import argparse
import os
import subprocess
import sys
import tempfile

import goldens
import safetensors_io

OPTIMIZERS = ("llama-adamw8bit", "llama-lion", "llama-adafactor",
              "llama-schedulefree", "llama-muon", "llama-rmsprop")
# Optimizers whose updates can be sharded (zero1). shards.py shards AdamW's.
SHARDED = ("llama-lion", "llama-rmsprop")
# Cases that are only resumed, on one rank. Two ranks would round tied weights
# in a different order (see goldens.py).
RESUMED = ("llama-muon-full", "llama-pissa", "llama-pissa-nf4",
           "llama-pissa-niter", "llama-olora")


def contents(case, folder, steps):
    """Returns the bytes of the run's result and of the state in
    checkpoint-`steps`, by file and tensor."""
    files = (os.path.basename(goldens.start_of(case)
                              or "adapter_model.safetensors"),
             f"checkpoint-{steps}/state.safetensors")
    return {(name, tensor): value.tobytes() for name in files
            for tensor, value in
            safetensors_io.load(os.path.join(folder, name)).items()}


def compare(what, got, expected):
    if set(got) != set(expected):
        raise goldens.Failure(f"{what} has other tensors: "
                              f"{sorted(set(got) ^ set(expected))}")
    for tensor, value in expected.items():
        if got[tensor] != value:
            raise goldens.Failure(f"{tensor} has other bytes in {what}")


def check_case(tools, case, work):
    module = goldens.build(tools, case, work, [])

    def run(name, *flags, module=module):
        folder = os.path.join(work, name)
        goldens.run([f"{tools}/qlora-run", module, "--config",
                     os.path.join(case, "train.yaml"), "--output-dir", folder,
                     "--save-steps", "3", "--base-cache", "none", *flags],
                    os.path.join(work, "log.txt"))
        return folder

    whole = contents(case, run("whole"), 6)
    run("broken", "--max-steps", "3")
    compare("the run that went on", contents(
        case, run("broken", "--resume-from-checkpoint", "latest"), 6), whole)
    with open(os.path.join(work, "log.txt")) as log:
        if "checkpoint-3', after step 3" not in log.read():
            raise goldens.Failure("no run says that it resumes")
    if os.path.basename(case) in RESUMED:
        return
    one, two = (contents(case, run(
        f"ranks{ranks}", "--max-steps", "3", "--gpus", str(ranks),
        "--gradient-accumulation-steps", str(2 // ranks)), 3)
        for ranks in (1, 2))
    compare("the run of two ranks", two, one)
    if os.path.basename(case) in SHARDED:
        sharded = goldens.build(tools, case, work, ["--parallel", "zero1=2"],
                                name="sharded.so")
        compare("the run with sharded updates", contents(case, run(
            "sharded", "--max-steps", "3", "--gpus", "2", module=sharded), 3),
            one)
    done = subprocess.run([f"{tools}/qlora-run", module, "--optim",
                           "adamw_torch"], capture_output=True, text=True)
    if done.returncode == 0 or "the program was compiled with" \
            not in done.stderr:
        raise goldens.Failure(f"--optim was not refused: {done.stderr}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    here = os.path.dirname(os.path.abspath(__file__))
    for name in OPTIMIZERS + RESUMED:
        with tempfile.TemporaryDirectory() as work:
            try:
                check_case(tools, os.path.join(here, "../Inputs/goldens", name),
                           work)
            except goldens.Failure as failure:
                sys.exit(f"{name}: {failure}")
        print("ok  ", name)


if __name__ == "__main__":
    main()
