#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Guarantees for every input: bytes, limits, ranks.

    promises.py --tools build/bin

* the same input gives the same train.so and the same adapter;
* one rank with K accumulations and K ranks with one give the same losses;
* --memory-limit is kept or refused; a plan within it trains to the same losses;
* --gradient-checkpointing does not increase the memory of activations;
* in bfloat16, too, no memory limit, down to the lowest possible one, changes a
  bit of a loss or an adapter;
* the tightest limit of a deep model recomputes ops for several blocks, and
  trains to the same losses;
* a step has at most four collectives, the first before the backward ends.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

from safetensors_io import load, save

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "Inputs", "goldens")


def call(*command, code=0):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, (
        f"{' '.join(command)}: exit {done.returncode}\n"
        f"{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Case:
    """One golden case, imported once."""

    def __init__(self, tools, name, folder, model=None):
        self.tools, self.folder = tools, folder
        os.makedirs(folder, exist_ok=True)
        model = model or os.path.join(CASES, name, "model")
        self.yaml = os.path.join(CASES, name, "train.yaml")
        self.model = os.path.join(folder, "m.mlir")
        call(f"{tools}/qlora-import", model, "-o", self.model)

    def compile(self, *flags, code=0):
        self.module = os.path.join(self.folder, "t.so")
        return call(f"{self.tools}/qloracc", "--target=cpu",
                    self.model, "-o", self.module,
                    "--config", self.yaml, *flags, code=code)

    def train(self, *flags):
        out = os.path.join(self.folder, "out")
        call(f"{self.tools}/qlora-run", self.module, "--config", self.yaml,
             "--base-cache", "none", "--output-dir", out,
             "--overwrite-output-dir", *flags)
        with open(os.path.join(out, "metrics.jsonl")) as lines:
            rows = [json.loads(line) for line in lines]
        losses = np.array([row["loss"] for row in rows if "loss" in row])
        return losses, read(os.path.join(out, "adapter_model.safetensors"))


def same_bytes(tools, folder):
    case = Case(tools, "llama-nf4", folder)
    case.compile()
    first = read(case.module)
    losses, adapter = case.train()
    case.compile("--no-cache")
    assert read(case.module) == first, "train.so differs"
    again, adapter_again = case.train()
    assert (losses == again).all() and adapter == adapter_again, "run differs"


def ranks_and_accumulation(tools, folder):
    case = Case(tools, "llama-packed", folder)
    case.compile()
    losses = {}
    for ranks, steps in ((1, 4), (2, 2), (4, 1)):
        losses[ranks], _ = case.train("--gpus", str(ranks),
                                      "--gradient-accumulation-steps",
                                      str(steps))
    for ranks in (2, 4):
        worst = np.abs(losses[ranks] - losses[1]).max()
        assert worst < 2e-5, f"{ranks} ranks: losses differ by {worst}"


def report(case, *flags):
    path = os.path.join(case.folder, "plan.json")
    case.compile("--plan-report", path, *flags)
    with open(path) as file:
        return json.load(file)


def memory_limit(tools, folder):
    case = Case(tools, "llama-nf4", folder)
    free = report(case)
    want, _ = case.train()
    blocks = report(case, "--gradient-checkpointing")
    assert blocks["arenas"]["activation"] <= free["arenas"]["activation"]
    other = free["total_bytes"] - free["arenas"]["activation"]
    for share in (0.95, 0.85):
        limit = int(other + share * free["arenas"]["activation"])
        plan = report(case, "--memory-limit", f"{limit}B")
        assert plan["total_bytes"] <= limit, (plan["total_bytes"], limit)
        losses, _ = case.train()
        assert np.abs(losses - want).max() < 2e-5, "limited run differs"
    text = case.compile("--memory-limit", f"{other}B", code=1)
    needed = int(re.search(r"\((\d+) bytes\)", text).group(1))
    assert "large tensors: " in text, text
    plan = report(case, "--memory-limit", f"{needed}B")
    assert plan["total_bytes"] <= needed
    case.compile("--memory-limit", f"{needed // 2}B", code=1)


def same_bits(tools, folder):
    for name in ("qwen3-ranks", "qwen2-nf4"):
        case = Case(tools, name, os.path.join(folder, name))
        # Fix the form of decoding, so that it is the same for every limit.
        numbers = ("--compute-dtype", "bfloat16")
        flags = (*numbers, "--dequantize", "tiled")
        free = report(case, *flags)
        want, adapter = case.train(*numbers)
        text = case.compile(*flags, "--memory-limit", "1B", code=1)
        least = int(re.search(r"\((\d+) bytes\)", text).group(1))
        for share in (0.7, 0.3, 0):
            limit = int(least + share * (free["total_bytes"] - least))
            plan = report(case, *flags, "--memory-limit", f"{limit}B")
            again = plan["rematerialize"]["steps"][0]["recomputed"]
            assert again, f"{name}: nothing is recomputed in {limit} bytes"
            losses, limited = case.train(*numbers)
            assert (losses == want).all(), (
                f"{name} in {limit} bytes: {np.abs(losses - want).max()}")
            assert limited == adapter, f"{name} in {limit} bytes: the adapter"


def deepen(name, layers, folder):
    """Writes a golden case's model with its two blocks repeated, up to `layers`
    layers."""
    source = os.path.join(CASES, name)
    model = os.path.join(folder, "model")
    shutil.copytree(os.path.join(source, "model"), model)
    path = os.path.join(model, "config.json")
    with open(path) as file:
        config = json.load(file)
    few, config["num_hidden_layers"] = config["num_hidden_layers"], layers
    with open(path, "w") as file:
        json.dump(config, file)
    weights = os.path.join(model, "model.safetensors")
    tensors = load(weights)
    for key, tensor in list(tensors.items()):
        match = re.match(r"model\.layers\.(\d+)\.(.*)", key)
        for layer in range(few, layers if match else 0):
            if layer % few == int(match.group(1)):
                tensors[f"model.layers.{layer}.{match.group(2)}"] = tensor
    save(weights, tensors)
    return model


def two_levels(tools, folder):
    case = Case(tools, "llama-nf4", folder,
                deepen("llama-nf4", 12, folder))
    flags = ("--model-name-or-path", os.path.join(folder, "model"),
             "--adapter-name-or-path", "", "--max-steps", "4")
    case.compile()
    want, _ = case.train(*flags)
    text = case.compile("--memory-limit", "1B", code=1)
    needed = int(re.search(r"\((\d+) bytes\)", text).group(1))
    plan = report(case, "--memory-limit", f"{needed}B")
    assert plan["total_bytes"] <= needed
    times = [op["times"]
             for op in plan["rematerialize"]["steps"][0]["recomputed"]]
    assert max(times) > 1, "nothing is recomputed twice"
    losses, _ = case.train(*flags)
    assert np.abs(losses - want).max() < 2e-5, "limited run differs"


def collectives(tools, folder):
    case = Case(tools, "qwen3-ranks", folder)
    case.compile()
    text = call(f"{tools}/qlora-run", case.module, "--print")
    last = re.search(r"accumulate_last.*?(?=\n\S*(?:update|evaluate)|\Z)",
                     text, re.S | re.I).group(0).splitlines()
    sends = [i for i, line in enumerate(last) if "all_reduce" in line]
    assert 1 <= len(sends) <= 4, f"{len(sends)} collectives"
    launches_after = [line for line in last[sends[0]:] if "launch" in line]
    assert launches_after, "the first collective waits for the backward"
    call(f"{tools}/qlora-run", case.module, "--device", "null", "--gpus", "8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    failures = 0
    checks = (same_bytes, ranks_and_accumulation, memory_limit, same_bits,
              two_levels, collectives)
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(tools, folder)
                print(f"ok   {check.__name__}", flush=True)
            except AssertionError as error:
                failures += 1
                print(f"FAIL {check.__name__}: {error}", flush=True)
    print(f"promises: {len(checks) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
