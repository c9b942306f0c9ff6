#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The examples work as their READMEs say.

    examples.py --tools build/bin [EXAMPLE ...]

Runs each `bash` block of a page in a copy of the clone. Each line of the `text`
block after it must be in the output, in that order. Numbers may differ; a line
of `…` stands for any lines. Then checks what the example trained.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
NUMBER = re.compile(r"\d[\d.,:]*(e[+-]?\d+|[kM]\b)?")


def blocks(page):
    """Returns (commands, expected output or "") of a page, in order."""
    with open(page, encoding="utf-8") as file:
        found = re.findall(r"^```(bash|text)\n(.*?)^```", file.read(),
                           re.M | re.S)
    pairs = []
    for kind, text in found:
        if kind == "bash":
            pairs.append([text, ""])
        elif pairs and not pairs[-1][1]:
            pairs[-1][1] = text
    assert pairs, f"{page} has no commands"
    return pairs


def pattern(line):
    return " ".join(NUMBER.sub("0", line).split())


def check_output(expected, output):
    printed = iter(map(pattern, output.splitlines()))
    for line in expected.splitlines():
        if line.strip() not in ("", "…"):
            assert pattern(line) in printed, f"not printed: {line}\n{output}"


def run_page(page, folder, tools):
    peft = os.path.join(ROOT, ".venv/peft/bin")  # bin/python has PEFT
    environment = {
        **os.environ, "XDG_CACHE_HOME": os.path.join(folder, "cache"),
        "CUDA_VISIBLE_DEVICES": "", "QLORA_PYTHON": shutil.which("python3"),
        "PATH": os.pathsep.join((tools, peft, os.environ["PATH"]))}
    for commands, expected in blocks(page):
        done = subprocess.run(
            ["bash", "-e", "-c", commands], cwd=folder, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False)
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        check_output(expected, done.stdout)


def rows(folder, name="loss"):
    """Returns the values of a metric, by step."""
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        every = [json.loads(line) for line in file]
    found = [(row["step"], row[name]) for row in every if name in row]
    assert len(dict(found)) == len(found), f"a step comes twice: {found}"
    return dict(found)


def falls(losses, times):
    first, *_, last = losses.values()
    assert last * times < first, f"the loss does not fall: {losses}"


def check_chat(out):
    falls(rows(f"{out}/chat-qwen3/adapter"), 4)


def check_dpo(out):
    falls(rows(f"{out}/dpo"), 4)
    *_, accuracy = rows(f"{out}/dpo", "rewards/accuracies").values()
    assert accuracy > 0.95, accuracy
    with open(f"{out}/dpo/README.md") as file:
        card = file.read()
    for line in ("- dpo\n", "| rl | dpo |", "| loss\\_type | sigmoid |"):
        assert line in card, card


def check_ranks(out):
    mesh, plain = (rows(f"{out}/several-ranks/{name}")
                   for name in ("mesh", "data-parallel"))
    assert list(mesh) == list(plain), (mesh, plain)
    for step, loss in mesh.items():
        assert abs(loss - plain[step]) < 1e-3 * plain[step], (mesh, plain)


def check_continued(out):
    first, second = (rows(f"{out}/continue/{name}")
                     for name in ("first", "second"))
    assert list(first) == list(range(20, 121, 20)), first
    falls(first, 4)
    assert max(second.values()) < first[20] / 4, (first, second)


def check_script(out):
    losses = rows(f"{out}/python-script")
    assert max(losses) < 200 and losses[max(losses)] < 0.1, losses
    assert os.path.exists(f"{out}/python-script/adapter_model.safetensors")


# Example -> function that checks the results of the page's commands.
PAGES = {"chat-qwen3": check_chat, "dpo": check_dpo,
         "several-ranks": check_ranks,
         "continue-from-adapter": check_continued,
         "python-script": check_script, "docs/data.md": lambda out: None}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("examples", nargs="*", default=list(PAGES))
    args = parser.parse_args()
    tools = os.path.realpath(args.tools)
    known = set(os.listdir(os.path.join(ROOT, "examples")))
    assert known == {"README.md", "demo", *PAGES} - {"docs/data.md"}, known
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(os.path.join(ROOT, "examples"),
                        os.path.join(folder, "examples"))
        os.mkdir(os.path.join(folder, "build"))
        os.symlink(tools, os.path.join(folder, "build", "bin"))
        for name in ("tools", ".venv"):
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
        for name in args.examples:
            page = (os.path.join(ROOT, name) if name.endswith(".md") else
                    os.path.join(ROOT, "examples", name, "README.md"))
            run_page(page, folder, tools)
            PAGES[name](os.path.join(folder, "out"))
            print(f"{name}: fine")


if __name__ == "__main__":
    main()
