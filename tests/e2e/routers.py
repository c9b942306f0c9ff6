#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The routers' loss does not depend on how a step's micro-batches are
distributed: five ranks log the same as one rank that accumulates five. In the
last step of the epoch only one micro-batch has rows, and the mean is its loss.
A run that resumes between two log lines logs the line of an uninterrupted one.

    routers.py --tools build/bin
"""

import argparse
import json
import os
import sys
import tempfile

import goldens
import step_packing

NAMES = ("loss", "grad_norm", "aux_loss")


def logged(tools, module, case, work, name, *flags):
    """Returns the logged values of a run of 11 micro-batches of two rows."""
    folder = os.path.join(work, name)
    goldens.run([f"{tools}/qlora-run", module, "--config",
                 os.path.join(case, "train.yaml"), "--output-dir", folder,
                 "--base-cache", "none", "--max-steps", "3", "--train-file",
                 os.path.join(work, "rows.safetensors"), *flags],
                os.path.join(work, "log.txt"))
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        steps = [json.loads(line) for line in lines]
    return [[step[name] for name in NAMES] for step in steps if "loss" in step]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    case = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "../Inputs/goldens/mixtral-balance")
    with tempfile.TemporaryDirectory() as work:
        module = goldens.build(tools, case, work, [])
        step_packing.write_rows(os.path.join(work, "rows.safetensors"), 22, 64,
                                1)
        one, five = (logged(tools, module, case, work, f"ranks{ranks}",
                            "--gpus", str(ranks),
                            "--gradient-accumulation-steps", str(5 // ranks))
                     for ranks in (1, 5))
        whole = logged(tools, module, case, work, "whole", "--logging-steps",
                       "3", "--save-steps", "2")
        resumed = logged(tools, module, case, work, "resumed",
                         "--logging-steps", "3", "--resume-from-checkpoint",
                         os.path.join(work, "whole", "checkpoint-2"))
    if len(one) != 3 or len(five) != 3:
        sys.exit(f"expected 3 steps, got {len(one)} and {len(five)}")
    if len(whole) != 1 or resumed[-1] != whole[-1]:
        sys.exit(f"the resumed run logs {resumed}, not {whole}")
    for step, values in enumerate(zip(one, five), 1):
        for name, want, got in zip(NAMES, *values):
            if abs(got - want) > 1e-5 * abs(want):
                sys.exit(f"step {step}: {name} is {got} on five ranks, {want} "
                         "on one")
    # aux_loss stays near 2, the number of experts per token.
    first, *_, last = (step[NAMES.index("aux_loss")] for step in one)
    if abs(last - first) > 0.2 * first:
        sys.exit(f"aux_loss is {last} in the last step, {first} in the first")
    print("ok   the routers' loss where micro-batches have no rows")


if __name__ == "__main__":
    main()
