#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains examples of axolotl and LLaMA-Factory with the tools themselves, and
writes the losses, rates and label counts of each step into tool_runs.json.

    tool_runs.py --axolotl PYTHON --llama-factory PYTHON [PATH ...]

PYTHON is an interpreter with the tool installed, without a GPU:

    pip install axolotl==0.19.0
    pip install llamafactory==0.9.5 transformers==5.6.0 peft==0.18.1
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tools/qlora"))


def labels_in(inputs):
    """Returns the labels of a micro-batch, as the tools' trainers get it."""
    if "labels" in inputs:
        return int((inputs["labels"][:, 1:] != -100).sum())
    if "completion_mask" in inputs:
        return int(inputs["completion_mask"].sum())
    return sum(int((value[:, 1:] != -100).sum())
               for key, value in inputs.items() if key.endswith("_labels"))


def count_tokens_of_steps(trainer):
    """Restores the rule of transformers, that all tokens of a step count the
    same. axolotl 0.19 averages the means of micro-batches instead
    (core/trainers/base.py), which is inaccurate if they differ in length."""
    train = trainer.train

    def training(self, *args, **kwargs):
        self.model_accepts_loss_kwargs = True
        return train(self, *args, **kwargs)
    trainer.train = training


def record(tool, path, output):
    """Trains a file; appends a line for each micro-batch to `output`."""
    from transformers import Trainer
    training_step = Trainer.training_step

    def step(self, model, inputs, *args, **kwargs):
        rows = inputs.get("input_ids", inputs.get("chosen_input_ids"))
        line = {"step": self.state.global_step, "labels": labels_in(inputs),
                "rows": len(rows), "lr": self.lr_scheduler.get_last_lr()[0]}
        loss = training_step(self, model, inputs, *args, **kwargs)
        with open(output, "a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "loss": float(loss)}) + "\n")
        return loss
    Trainer.training_step = step
    if tool == "axolotl":
        count_tokens_of_steps(Trainer)
    if tool == "axolotl":
        import axolotl.cli.train
        axolotl.cli.train.do_cli(path)
    else:
        sys.argv[1:] = [path]
        from llamafactory.train.tuner import run_exp
        run_exp()


def steps_of(lines):
    """Adds up the micro-batches of each step."""
    steps = []
    for line in map(json.loads, lines):
        if line["step"] == len(steps):
            steps.append({"lr": line["lr"], "labels": 0, "loss": 0})
        steps[-1]["labels"] += line["labels"]
        steps[-1]["loss"] += line["loss"]
    return steps


def train(example, tools, python):
    import tool_run_files
    with tempfile.TemporaryDirectory() as folder:
        files = tool_run_files.Files(folder, tools, tool_run_files.ROWS)
        path, output = files.write(example), os.path.join(folder, "steps")
        done = subprocess.run(
            [python, os.path.abspath(__file__), "--record", example["tool"],
             path, output], cwd=folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=300,
            env={**os.environ, "HF_HUB_CACHE": files.cache,
                 "HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1",
                 "AXOLOTL_DATASET_NUM_PROC": "1"})
        if done.returncode or not os.path.exists(output):
            sys.exit(f"{example['path']}\n{done.stdout[-6000:]}")
        with open(output, encoding="utf-8") as file:
            return steps_of(file)


def main():
    import tool_run_files
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axolotl", required=True)
    parser.add_argument("--llama-factory", required=True)
    parser.add_argument("paths", nargs="*")
    args = parser.parse_args()
    pythons = {"axolotl": args.axolotl, "LLaMA-Factory": args.llama_factory}
    runs = {}
    if os.path.exists(tool_run_files.RUNS):
        with open(tool_run_files.RUNS, encoding="utf-8") as file:
            runs = json.load(file)
    examples, tools = tool_run_files.chosen()
    for example in examples:
        if not args.paths or example["path"] in args.paths:
            print(example["tool"], example["path"], flush=True)
            runs[example["path"]] = train(example, tools,
                                          pythons[example["tool"]])
    with open(tool_run_files.RUNS, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(
            f' {json.dumps(path)}: [\n' + ",\n".join(
                "  " + json.dumps(step) for step in steps) + "\n ]"
            for path, steps in sorted(runs.items())) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(*sys.argv[2:])
    else:
        main()
