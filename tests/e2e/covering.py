#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Trains every pair of family, format, adapter and number of ranks.

    covering.py --tools build/bin [--target cuda] [--fsdp] [--every N]
                [--first I] [--jobs N] [--peft PYTHON] [--keep DIR] [--list]
                [ROW ...]

A row of the covering array (covering_rows.py) is a tiny model that is created
here, imported, compiled and trained for two steps as a user would. It is
compared with PyTorch's results (Inputs/covering.json, from
Inputs/covering.py): losses, gradient norms, logits before training, and logits
of a second run from the written adapter. An impossible row is refused with its
message. With --every, each N-th row from row I on is trained. With --fsdp the
rows with several ranks and a frozen base are trained with fsdp. With --peft the
adapters of families that PYTHON's transformers supports are loaded with its
PEFT on the same models, and must have our logits.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import safetensors_io  # noqa: E402
from covering_formats import FORMATS  # noqa: E402
from covering_rows import covering_array, name_of, refused_rows  # noqa: E402
from covering_rows import sampled, settings, settings_after  # noqa: E402
from covering_rows import write_row, write_yaml  # noqa: E402
from goldens import LOGITS, LOSS, NORM, Failure, check  # noqa: E402
from goldens import cuda_environment, cuda_flags, run  # noqa: E402

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                      "Inputs")
# For --peft: our families that transformers 4.44 implements in the same way.
# StarCoder2 is missing, because its eager attention has no window there.
OLDER = ("llama2", "llama3", "mistral", "qwen2", "gemma2", "gpt2", "mixtral",
         "qwen2moe", "stablelm")


def build(options, folder):
    run([f"{options.tools}/qlora-import", os.path.join(folder, "model"), "-o",
         os.path.join(folder, "m.mlir")], os.path.join(folder, "log.txt"))
    return compile_for(options, folder, "train.yaml",
                       *(["--parallel", "fsdp=2", "--shard-embeddings", "true"]
                         if options.fsdp else []))


def compile_for(options, folder, config, *flags):
    module = os.path.join(folder, f"{config}.so")
    run([f"{options.tools}/qloracc", "--target=cpu",
         os.path.join(folder, "m.mlir"), "-o",
         module, "--config", os.path.join(folder, config), *flags,
         *(cuda_flags() if options.target == "cuda" else [])],
        os.path.join(folder, "log.txt"))
    return module


def train(options, row, folder, module):
    """Returns metrics, and the logits before and after training. The logits
    after training are None if the output is rounded, because rounding changes
    them."""
    environment = (cuda_environment(options, row["ranks"])
                   if options.target == "cuda" else os.environ)
    environment = {**environment, "XDG_CACHE_HOME": folder}
    out, again = os.path.join(folder, "out"), os.path.join(folder, "again")

    def start(module, config, ranks, *more):
        run([f"{options.tools}/qlora-run", module, "--config",
             os.path.join(folder, config), "--gpus", str(ranks), "--threads",
             "1", *more], os.path.join(folder, "log.txt"), environment)
    start(module, "train.yaml", row["ranks"], "--output-dir", out, "--dump",
          f"{folder}/1")
    with open(os.path.join(out, "metrics.jsonl")) as lines:
        metrics = [json.loads(line) for line in lines]
    metrics = [step for step in metrics if "loss" in step]
    before = safetensors_io.load(f"{folder}/1")["logits"]
    if row["adapter"] == "full" and row["format"] != "f32":
        return metrics, before, None
    name = ("--model-name-or-path" if row["adapter"] == "full"
            else "--adapter-name-or-path")
    config, values = "train.yaml", settings_after(row, out)
    if values != settings(row) or options.fsdp:  # one rank has all values
        config = "after.yaml"
        write_yaml(os.path.join(folder, config), values)
        module = compile_for(options, folder, config)
    start(module, config, 1, name, out, "--output-dir", again, "--max-steps",
          "1", "--dump", f"{folder}/2")
    return metrics, before, safetensors_io.load(f"{folder}/2")["logits"]


def run_row(options, row, expected, folder):
    """Trains and evaluates a row. Returns its errors, each with the limit."""
    write_row(folder, row, expected["seed"])
    metrics, before, after = train(options, row, folder,
                                   build(options, folder))
    if len(metrics) != len(expected["loss"]):
        raise Failure(f"logged {len(metrics)} steps")
    errors = {}
    for i, step in enumerate(metrics):
        check(errors, "loss", abs(step["loss"] - expected["loss"][i]), LOSS)
        norm = expected["grad_norm"][i]
        check(errors, "grad_norm", abs(step["grad_norm"] - norm) / norm, NORM)
    for when, logits in (("before", before), ("after", after)):
        if logits is not None:
            check(errors, f"logits {when}", np.abs(np.subtract(
                sampled(logits), expected[when])).max(), LOGITS)
    if after is not None:  # for --peft
        safetensors_io.save(os.path.join(folder, "out", "after.safetensors"),
                            {"logits": after})
    return errors


def check_refused(options, row, message, folder):
    write_row(folder, row, 1)
    try:
        build(options, folder)
    except Failure as failure:
        if not re.search(f" exited 1\n(.*\n)*.*{message}", str(failure)):
            raise Failure(f"is refused with another message than '{message}': "
                          f"{failure}") from None
        return {}
    raise Failure("is not refused")


def load_in_peft(options, rows, work):
    """Loads adapters in PEFT, except formats that only bitsandbytes quantizes,
    and experts that transformers 5 merged into one parameter."""
    names = [name for name, row in rows.items() if row["family"] in OLDER
             and not FORMATS[row["format"]].options
             and row["adapter"] not in ("full", "experts")]
    return subprocess.run(
        [options.peft, os.path.join(INPUTS, "covering.py"), "--load", work,
         *names], check=False).returncode == 0


def chosen(options):
    """Returns the rows to train, and those to be refused, by name."""
    rows = covering_array()
    if options.fsdp:
        rows = {name: row for name, row in rows.items()
                if row["ranks"] > 1 and row["adapter"] != "full"}
    refused = {} if options.names or options.fsdp else {
        name_of(row): (row, message) for row, message in refused_rows()}
    if options.names:
        return {name: rows[name] for name in options.names}, refused
    some = slice(options.first, None, options.every)
    return dict(list(rows.items())[some]), dict(list(refused.items())[some])


def attempt(options, work, name, task):
    """Returns the result of `task` for a row; deletes files that PEFT does not
    read."""
    folder = os.path.join(work, name)
    os.makedirs(folder)
    try:
        return name, task(folder)
    except Failure as failure:
        return name, failure
    finally:
        for entry in set() if options.keep else set(os.listdir(folder)):
            path = os.path.join(folder, entry)
            if os.path.isfile(path):
                os.remove(path)
            elif entry != "out":
                shutil.rmtree(path)


def report(options, name, errors):
    """Prints the errors; returns whether all are within their limits."""
    if isinstance(errors, Failure):
        failed, text = True, errors
    else:
        failed = any(not ratio <= 1 for ratio, _ in errors.values())
        text = ", ".join(f"{what} {value:.2g}" for what, (_, value)
                         in errors.items()) or "refused"
    if failed or options.list:
        print(f"{'FAIL' if failed else 'ok  '} {name}: {text}", flush=True)
    return not failed


def train_all(options, work):
    """Returns whether all rows pass."""
    with open(os.path.join(INPUTS, "covering.json")) as file:
        expected = json.load(file)["rows"]
    rows, refused = chosen(options)
    if unknown := set(rows) - set(expected):
        sys.exit(f"covering: no numbers for {min(unknown)}; write them with "
                 "Inputs/covering.py")
    tasks = {name: functools.partial(run_row, options, row, expected[name])
             for name, row in rows.items()} | {
        name: functools.partial(check_refused, options, *refusal)
        for name, refusal in refused.items()}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        done = pool.map(lambda task: attempt(options, work, *task),
                        tasks.items())
        good = sum(report(options, *result) for result in done)
    print(f"covering: {len(rows)} rows trained, {len(refused)} refused, "
          f"{len(tasks) - good} failed", flush=True)
    return good == len(tasks) and (
        not options.peft or load_in_peft(options, rows, work))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tools", required=True)
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--peft")
    parser.add_argument("--keep")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.library_path = None
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
        return 0 if train_all(options, options.keep) else 1
    with tempfile.TemporaryDirectory() as work:
        return 0 if train_all(options, work) else 1


if __name__ == "__main__":
    sys.exit(main())
