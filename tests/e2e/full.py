#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""full.py --tools build/bin: full fine-tuning as a user runs it.

Trains a GPT-2 with bf16 files in float32. The output is a model folder in bf16
with the same tensor names, and its values are the last checkpoint's float32
ones, rounded. transformers computes the same loss from it as `qlora-run`
evaluates. A resumed run ends with the same bytes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import safetensors_io  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CASE = os.path.join(HERE, "..", "Inputs", "goldens", "gpt2")
TRANSFORMERS = """
import sys, torch, transformers
from safetensors.torch import load_file
model, info = transformers.AutoModelForCausalLM.from_pretrained(
    sys.argv[1], torch_dtype=torch.float32, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
rows = load_file(sys.argv[2])
total = count = 0
for ids, labels in zip(rows["input_ids"].long(), rows["labels"].long()):
    logits = model(ids).logits[:, :-1].flatten(0, 1)
    labels = labels[:, 1:].flatten()
    total += torch.nn.functional.cross_entropy(logits, labels,
                                               reduction="sum").item()
    count += int((labels != -100).sum())
print(total / count)
"""


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"full: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def bf16(values):
    """Rounds to nearest, ties to even; returns the bits of bf16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def check_folder(out):
    """Compares the model folder with the last checkpoint, which has float32."""
    def load(folder):
        return safetensors_io.load(os.path.join(folder, "model.safetensors"))
    first, last = load(os.path.join(CASE, "model")), load(out)
    exact = load(os.path.join(out, "checkpoint-6"))
    if differing := set(first) ^ set(last):
        sys.exit(f"full: names differ: {sorted(differing)}")
    for name, values in last.items():
        if not np.array_equal(bf16(values), bf16(exact[name])):
            sys.exit(f"full: {name} is not the checkpoint's, rounded")
        if np.array_equal(values, first[name]):
            sys.exit(f"full: {name} has not been trained")
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    if {t["dtype"] for n, t in header.items()
        if n != "__metadata__"} != {"BF16"}:
        sys.exit("full: the model is not bf16, as it was")


def evaluate(tools, module, model, out):
    """Returns the evaluation loss of `model`, from a run without steps."""
    run(f"{tools}/qlora-run", module, "--model-name-or-path", model,
        "--validation-file", os.path.join(CASE, "batches.safetensors"),
        "--num-train-epochs", "0", "--output-dir", out)
    with open(os.path.join(out, "metrics.jsonl")) as lines:
        return json.loads(lines.readlines()[-1])["eval_loss"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    rows = os.path.join(CASE, "batches.safetensors")
    with tempfile.TemporaryDirectory() as work:
        model, module = f"{work}/m.mlir", f"{work}/t.so"
        run(f"{tools}/qlora-import", f"{CASE}/model", "-o", model)
        run(f"{tools}/qloracc", "--target=cpu",
            model, "-o", module, "--finetuning-type",
            "full", "--compute-dtype", "float32", "--max-length", "32",
            "--per-device-train-batch-size", "2")

        def train(out, *more):
            run(f"{tools}/qlora-run", module, "--model-name-or-path",
                f"{CASE}/model", "--train-file", rows, "--learning-rate",
                "1e-2", "--weight-decay", "0.1", "--max-steps", "6",
                "--save-steps", "3", "--output-dir", out, *more)
        train(f"{work}/a")
        check_folder(f"{work}/a")
        shutil.copytree(f"{work}/a/checkpoint-3", f"{work}/b/checkpoint-3")
        train(f"{work}/b", "--resume-from-checkpoint", "latest")
        with open(f"{work}/a/model.safetensors", "rb") as one, \
                open(f"{work}/b/model.safetensors", "rb") as other:
            if one.read() != other.read():
                sys.exit("full: a resumed run ends with other weights")
        run(f"{tools}/qlora-import", f"{work}/a", "-o", f"{work}/n.mlir")
        ours = evaluate(tools, module, f"{work}/a", f"{work}/e")
        python = os.path.join(HERE, "../../.venv/peft/bin/python")
        theirs = float(run(python, "-c", TRANSFORMERS, f"{work}/a",
                           rows).split()[-1])
        if not abs(ours - theirs) < 2e-5:
            sys.exit(f"full: loss {ours}, transformers has {theirs}")
    print(f"ok   full: loss {ours:.6f}, transformers {theirs:.6f}")


if __name__ == "__main__":
    main()
