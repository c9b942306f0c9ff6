#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""full.py --tools build/bin: full fine-tuning as a user runs it.

Trains a GPT-2 with bf16 files in float32. The output is a model folder in bf16
with the same tensor names, and its values are the last checkpoint's float32
ones, rounded. transformers computes the same loss from it as `qlora-run`
evaluates. A resumed run ends with the same bytes.

Then trains parts of a Gemma 3 with a vision tower: its checkpoints and its
output have all tensors of the model. Only the chosen tensors differ.
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
WRAPPED = os.path.join(HERE, "..", "Inputs", "goldens", "gemma3-wrapped-nf4")
UNFROZEN = ["model.language_model.layers.0.mlp.up_proj",
            ".+.1.self_attn", "model.language_model.norm"]
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


def raw(path):
    """Returns the dtype and the bytes of each tensor of a file."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (tensor["dtype"],
                   data[8 + size:][slice(*tensor["data_offsets"])])
            for name, tensor in header.items()}


def check_partial(tools, work):
    """Trains parts of a model, and resumes in the middle."""
    module = f"{work}/p.so"
    run(f"{tools}/qlora-import", f"{WRAPPED}/model", "-o", f"{work}/p.mlir")
    run(f"{tools}/qloracc", "--target=cpu", f"{work}/p.mlir", "-o", module,
        "--finetuning-type", "full", "--unfrozen-parameters", *UNFROZEN,
        "--compute-dtype", "float32", "--max-length", "32",
        "--per-device-train-batch-size", "2")

    def train(out, *more):
        run(f"{tools}/qlora-run", module, "--model-name-or-path",
            f"{WRAPPED}/model", "--train-file",
            f"{WRAPPED}/batches.safetensors", "--learning-rate", "1e-2",
            "--max-steps", "4", "--save-steps", "2", "--output-dir", out,
            *more)
    train(f"{work}/p")
    shutil.copytree(f"{work}/p/checkpoint-2", f"{work}/q/checkpoint-2")
    train(f"{work}/q", "--resume-from-checkpoint", "latest")
    base = raw(f"{WRAPPED}/model/model.safetensors")
    last = raw(f"{work}/p/model.safetensors")
    if last != raw(f"{work}/q/model.safetensors"):
        sys.exit("full: a resumed run of parts ends with other weights")
    chosen = {name for name in base if name.startswith((
        UNFROZEN[0], "model.language_model.layers.1.self_attn", UNFROZEN[2]))}
    for folder in ("p", "p/checkpoint-2"):
        found = raw(f"{work}/{folder}/model.safetensors")
        changed = {name for name in base if found.get(name) != base[name]}
        if set(found) != set(base) or changed != chosen or not chosen:
            sys.exit(f"full: {folder} has other tensors: "
                     f"{sorted(set(found) ^ set(base) | changed ^ chosen)}")
    if {last[name][0] for name in chosen} != {base[name][0]
                                              for name in chosen}:
        sys.exit("full: trained tensors have another type than before")


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
        check_partial(tools, work)
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
