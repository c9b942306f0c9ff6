#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""A run that goes on from a checkpoint has the bytes of one without a break,
with every optimizer, and what was compiled for one is not run with another.

    optimizers.py --tools build/bin
"""

import argparse
import os
import subprocess
import sys
import tempfile

import goldens
import safetensors_io

CASES = ("llama-adamw8bit", "llama-lion", "llama-adafactor",
         "llama-schedulefree", "llama-muon")
FILES = ("adapter_model.safetensors", "checkpoint-6/state.safetensors")


def contents(folder):
    return {(name, tensor): value.tobytes() for name in FILES
            for tensor, value in
            safetensors_io.load(os.path.join(folder, name)).items()}


def check_case(tools, case, work):
    module = goldens.build(tools, case, work, [])

    def run(name, *flags):
        folder = os.path.join(work, name)
        goldens.run([f"{tools}/qlora-run", module, "--config",
                     os.path.join(case, "train.yaml"), "--output-dir", folder,
                     "--save-steps", "3", "--base-cache", "none", *flags],
                    os.path.join(work, "log.txt"))
        return folder

    whole = contents(run("whole"))
    run("broken", "--max-steps", "3")
    again = contents(run("broken", "--resume-from-checkpoint", "latest"))
    for tensor, value in whole.items():
        if again.get(tensor) != value:
            raise goldens.Failure(f"{tensor} has other bytes in the run that "
                                  "went on")
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
    for name in CASES:
        with tempfile.TemporaryDirectory() as work:
            try:
                check_case(tools, os.path.join(here, "../Inputs/goldens", name),
                           work)
            except goldens.Failure as failure:
                sys.exit(f"{name}: {failure}")
        print("ok  ", name)


if __name__ == "__main__":
    main()
