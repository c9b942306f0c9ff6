# SPDX-License-Identifier: MIT

"""The examples of docs/launchers.md, adapted to run the demo: used by
jobset.py, slurm.py and supervision.py."""

import os
import re
import shlex

from checkpoint_runs import HERE, check

PAGE = os.path.join(HERE, "..", "..", "docs", "launchers.md")
TRAINING = ("qlora-run train.so --config train.yaml --output-dir adapter "
            "--resume-from-checkpoint true")


def blocks(section, language):
    with open(PAGE) as file:
        text = file.read().split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    check(found, f"{PAGE}: {section}: no example in {language}")
    return found


def script(section, pairs, runs, folder):
    """Returns the section's shell lines with the demo and replaced `pairs`."""
    text = blocks(section, "sh")[0]
    ours = shlex.join(runs.command(folder, "--resume-from-checkpoint", "true"))
    for old, new in (*pairs, (TRAINING, ours)):
        check(old in text, f"{PAGE}: {section}: no '{old}' in", text)
        text = text.replace(old, new)
    return text
