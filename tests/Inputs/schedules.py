#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes schedules.json: learning rates of every step, as transformers'
get_scheduler and axolotl's RexLR compute them.

    schedules.py AXOLOTL/src/axolotl/utils/schedulers.py > schedules.json

An element has the values of qlora's options, `total` steps and their `rates`.
Needs torch and transformers; their versions are in the file.
"""

import importlib.util
import json
import sys
import warnings

import torch
import transformers

RATE = 0.002
CASES = [
    ("constant", {}), ("constant_with_warmup", {}), ("linear", {}),
    ("cosine", {}), ("cosine", {"num_cycles": 1.25}),
    ("cosine_with_restarts", {}), ("cosine_with_restarts", {"num_cycles": 3}),
    ("cosine_with_min_lr", {"min_lr": 0.0003}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 1.5}),
    ("cosine_warmup_with_min_lr", {"min_lr": 0.0003}),
    ("cosine_warmup_with_min_lr",
     {"min_lr_rate": 0.1, "warmup_lr_rate": 0.25, "num_cycles": 1}),
    ("polynomial", {}), ("polynomial", {"lr_end": 0.0001, "power": 2.5}),
    ("inverse_sqrt", {}), ("inverse_sqrt", {"timescale": 7}),
    ("warmup_stable_decay", {"num_decay_steps": 5}),
    ("warmup_stable_decay",
     {"num_decay_steps": 5, "num_stable_steps": 4, "warmup_type": "cosine",
      "decay_type": "linear", "min_lr_ratio": 0.1}),
    ("warmup_stable_decay",
     {"num_decay_steps": 6, "warmup_type": "1-sqrt", "decay_type": "1-sqrt",
      "min_lr_ratio": 0.2}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "num_cycles": 1.5}),
    ("rex", {}), ("rex", {"min_lr_rate": 0.1}),
]
WARMUPS, TOTALS = (0, 1, 4, 30), (1, 7, 20)


def rates(schedulers, name, parameters, warmup, total):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    if name == "rex":
        made = schedulers.RexLR(
            optimizer, max_lr=RATE,
            min_lr=RATE * parameters.get("min_lr_rate", 0),
            total_steps=total, num_warmup_steps=warmup)
    else:
        made = transformers.get_scheduler(
            name, optimizer, num_warmup_steps=warmup,
            num_training_steps=total, scheduler_specific_kwargs=parameters)
    values = []
    for step in range(total):
        if step:
            optimizer.step()
            made.step()
        values.append(made.get_last_lr()[0])
    return values


def main(path):
    warnings.simplefilter("ignore")
    spec = importlib.util.spec_from_file_location("schedulers", path)
    schedulers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(schedulers)
    cases = []
    for name, parameters in CASES:
        for warmup in WARMUPS:
            for total in TOTALS:
                if name == "rex" and warmup > total:
                    continue
                cases.append({
                    "lr_scheduler_type": name,
                    "lr_scheduler_kwargs": {
                        key: str(value) for key, value in parameters.items()},
                    "warmup_steps": warmup, "total": total,
                    "rates": rates(schedulers, name, parameters, warmup,
                                   total)})
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    versions = {module.__name__: module.__version__.split("+")[0]
                for module in (torch, transformers)} | {"axolotl": "0.18.0"}
    print(f'{{"reference": {json.dumps(versions)},\n "learning_rate": {RATE},\n'
          f' "cases": [\n  {lines}]}}')


if __name__ == "__main__":
    main(sys.argv[1])
