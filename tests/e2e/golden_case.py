# SPDX-License-Identifier: MIT

"""Shared by the checks of golden cases: tolerances, a case's settings, and
tools that run with a log."""

import json
import os
import subprocess

# LOGITS and LOSS are absolute, NORM and GRADIENT relative to the norm. FINAL is
# relative to the distance that training moved the values. Each limit is ten
# times the difference between references in float32 and in float64.
LOGITS, LOSS, NORM, GRADIENT, FINAL = 5e-5, 2e-5, 5e-5, 5e-5, 1e-3


class Failure(Exception):
    pass


def run(command, log, environment=None):
    with open(log, "a") as out:
        out.write("$ " + " ".join(command) + "\n")
        out.flush()
        code = subprocess.run(command, stdout=out, stderr=out,
                              env=environment).returncode
    if code:
        with open(log) as text:
            tail = text.read()[-2000:]
        raise Failure(f"{os.path.basename(command[0])} exited {code}\n{tail}")


def settings(case):
    """Returns train.yaml, which has JSON values; paths are relative to it."""
    found = {}
    with open(os.path.join(case, "train.yaml")) as lines:
        for line in lines:
            name, value = line.split(":", 1)
            found[name] = json.loads(value)
    for name in {"model_name_or_path", "train_file",
                 "adapter_name_or_path"} & set(found):
        found[name] = os.path.normpath(os.path.join(case, found[name]))
    return found


def check(errors, what, value, limit):
    """Records `value` / `limit` of the kind `what` if it is the largest."""
    ratio = value / limit
    if not ratio <= errors.get(what, (0, 0))[0]:
        errors[what] = (ratio, value)
