#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Counts a deep model's driver calls per step on the software CUDA platform.

    cuda_step.py --tools build/bin [--layers 32]

  graphs       one launch for each micro-batch and one for the update; no
               kernel is launched outside of graphs, nothing is allocated
  waits        the host never waits for the newest work
  collectives  at most four
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from cuda_platform import Case, Failure, expect
from promises import CASES, deepen
from safetensors_io import load, save

NAME = "llama-nf4"


def all_labelled(folder, name=NAME):
    """Writes the case's data with labels everywhere, so that every micro-batch
    uses the same graph."""
    data = load(os.path.join(CASES, name, "batches.safetensors"))
    data["labels"] = data["input_ids"]
    path = os.path.join(folder, "labelled.safetensors")
    save(path, data)
    return path


def check_calls(case, flags, few=2, many=4):
    """Counts calls per step in the steps from `few` to `many`. Earlier steps
    differ: entries first run kernel by kernel, and then are captured."""
    def counts(steps):
        return case.train("--max-steps", str(steps), *flags)[1]
    before, after = counts(few), counts(many)

    def per_step(name):
        return (after.get(name, 0) - before.get(name, 0)) / (many - few)
    graphs = per_step("cuGraphLaunch")
    others = {name: per_step(name)
              for name in ("cuLaunchKernel", "cuMemAlloc_v2", "cuMemHostAlloc",
                           "cuGraphInstantiateWithFlags")}
    waits = per_step("synchronisations")
    failed = expect("graphs", graphs == case.micro_batches + 1
                    and not any(others.values()),
                    f"{graphs:g} launches for {case.micro_batches} "
                    f"micro-batches and the update; other calls {others}")
    return failed + expect("waits", waits == 0,
                           f"{waits:g} synchronisations a step")


def check_collectives(case):
    done = subprocess.run(
        [f"{case.tools}/qlora-run", case.module, "--device", "null", "--gpus",
         "2", "--log-format", "json"], capture_output=True, text=True)
    if done.returncode:
        raise Failure(done.stderr[-500:])
    most = max(entry["collectives"]
               for entry in json.loads(done.stdout)["entries"])
    return expect("collectives", 1 <= most <= 4, f"{most} a step")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--layers", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        try:
            model = deepen(NAME, options.layers, work)
            case = Case(options.tools, NAME, work, model=model)
            flags = ("--model-name-or-path", model, "--adapter-name-or-path",
                     "", "--train-file", all_labelled(work))
            failed = check_calls(case, flags) + check_collectives(case)
        except Failure as failure:
            print(f"FAIL {failure}")
            failed = 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
