#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Trains examples of axolotl and LLaMA-Factory for three steps: for each model
family, each format of stored weights, each objective and each kind of data set,
one example that has it (tests/Inputs/foreign_examples.json).

    foreign_examples.py --tools build/bin [PATH ...]    # or the named examples
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tools/qlora"))
import example_files  # noqa: E402

FLAGS = ["--max-steps=3", "--output-dir=out", "--target=cpu",
         "--base-cache=none"]


def traits(example):
    keys = example["keys"]
    yield "model", example["family"], example.get("stored"), "lora" if (
        keys.get("adapter") or keys.get("finetuning_type") == "lora") else ""
    yield "objective", keys.get("rl") or keys.get("stage"), \
        keys.get("loss_type") or keys.get("pref_loss")
    for data in keys.get("datasets") or keys.get("pretraining_dataset") or []:
        yield "data", data.get("type"), data.get("drop_system_message")
    for key in ("model_config", "peft", "min_sample_len", "dataset_dir",
                "dataset_exact_deduplication", "chat_template", "template",
                "curriculum_sampling", "finetuning_type"):
        if keys.get(key):
            yield key, json.dumps(keys[key])


def chosen(examples):
    """Returns examples that together have all traits."""
    seen, found = set(), []
    for example in examples:
        if example["expected"] == "runs" and not seen.issuperset(
                traits(example)):
            seen.update(traits(example))
            found.append(example)
    return found


def train(example, tools):
    """Returns the run's output if it fails, else an empty text."""
    with tempfile.TemporaryDirectory() as folder:
        files = example_files.Folder(folder, tools, count=400)
        # The tiny models have few positions, and these files long rows.
        length = 64 if example["family"] == "GPT2LMHeadModel" else 128
        flags = [*FLAGS, f"--max-length={length}"]
        if example["keys"].get("min_sample_len"):
            flags.append("--min-length=4")
        done = subprocess.run(
            ["qlora", "train", files.write(example), *flags,
             f"--gpus={example_files.ranks(example)}"],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=folder, env={**os.environ, "HF_HUB_CACHE": files.cache,
                             "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": folder})
        log = os.path.join(folder, "out/metrics.jsonl")
        if done.returncode or not os.path.exists(log):
            return done.stdout
        with open(log, encoding="utf-8") as file:
            steps = [json.loads(line).get("step") for line in file]
        return "" if 3 in steps else f"steps {steps}\n{done.stdout}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", required=True)
    parser.add_argument("paths", nargs="*")
    args = parser.parse_args()
    os.environ["PATH"] = os.path.abspath(args.tools) + ":" + os.environ["PATH"]
    table = example_files.load()
    examples = [each for each in table["examples"]
                if each["path"] in args.paths] or chosen(table["examples"])
    failures = 0
    for example in examples:
        output = train(example, table["tools"])
        print("failed" if output else "ok    ", example["tool"],
              example["path"], flush=True)
        if output:
            failures += 1
            print("\n".join(line for line in output.splitlines()
                            if not line.startswith("qlora: /"))[-1500:])
    print(f"{len(examples)} examples, {failures} failed")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
