#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Packing the rows of a step instead of padding them does not change the
training.

    step_packing.py --tools build/bin [--target cuda]

Trains with padding and with --step-packing, on one and several ranks, with
different accumulations, and with cp. The data has rows of many lengths, prompts
that are not in the loss, and an epoch that is no multiple of the step.

Each step must have the same learning rate and epoch. Losses, gradient norms and
evaluations agree within 2e-5, relative to the largest value. Adapters agree
within 4e-4.

If RoPE depends on the length, it must depend on the length of the row, not of
the packed sequence. So loss and gradient norm of batched rows must equal the
results of rows trained one by one.
"""

import argparse
import json
import os
import tempfile

import numpy as np

from goldens import cuda_environment, cuda_flags
from promises import Case, call
from safetensors_io import load, save

TOLERANCE = 2e-5
LONGEST = 48
# (ranks, accumulation steps) by target. Few for the software platform (cuda),
# which is slow.
STEPS = {"cpu": ((1, 1), (1, 3), (2, 1), (2, 2), (3, 2)), "cuda": ((2, 2),)}

# Per golden case: loss and gradient norm of all rows, computed row by row with
# transformers 5.24 and PEFT 0.21. The rows have 2 to 48 tokens. Two rows are
# longer than the 8 positions of the original RoPE.
LENGTH_ROWS = (8, 128, 3)
ALONE = {"phi3-packed": (5.2900066, 1.5420884),
         "llama-dynamic": (5.4866385, 1.1856058)}


def write_rows(path, count, vocabulary, seed):
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(2.3, 0.8, count).astype(int), 2, LONGEST)
    ids = random.integers(0, vocabulary, lengths.sum()).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    labels = ids.copy()
    for begin, length in zip(offsets, lengths):
        labels[begin:begin + length // 2] = -100
    save(path, {"input_ids": ids, "labels": labels, "row_offsets": offsets})
    return lengths


def relative(left, right):
    return np.abs(np.subtract(left, right)).max() / np.abs(right).max()


def train(case, choice, ranks, accumulation, *flags):
    out = os.path.join(case.folder, f"out-{choice}")
    call(f"{case.tools}/qlora-run", case.module, "--step-packing", choice,
         "--gpus", str(ranks), "--gradient-accumulation-steps",
         str(accumulation), "--logging-steps", "1", "--num-train-epochs", "2",
         "--max-steps", "-1", "--base-cache", "none", "--output-dir", out,
         "--overwrite-output-dir", *flags)
    with open(os.path.join(out, "metrics.jsonl")) as lines:
        rows = [json.loads(line) for line in lines]
    return rows, load(os.path.join(out, "adapter_model.safetensors"))


def compare(padded, packed):
    """Compares the metrics of two runs, and their adapters."""
    (rows, adapter), (others, other) = padded, packed
    assert len(rows) == len(others), (len(rows), len(others))
    worst = 0
    for row, its in zip(rows, others):
        for name in ("loss", "grad_norm", "eval_loss"):
            if name in row:
                worst = max(worst, relative(its[name], row[name]))
        for name in ("step", "epoch", "learning_rate", "eval_rows",
                     "num_input_tokens_seen"):
            assert row.get(name) == its.get(name), (name, row, its)
    drift = max(relative(other[name], tensor)
                for name, tensor in adapter.items())
    assert worst <= TOLERANCE, f"metrics differ by {worst:.1e}"
    assert drift <= 20 * TOLERANCE, f"the adapter differs by {drift:.1e}"
    return worst, drift


def own_lengths(options, folder, name):
    """Checks all ways to put the rows into batches."""
    case = Case(options.tools, name, folder)
    data = os.path.join(folder, "rows.safetensors")
    count = len(write_rows(data, *LENGTH_ROWS))
    out, ways = os.path.join(folder, "out"), 0
    for batch, mesh in ((1, ""), (2, ""), (4, ""), (8, ""), (8, "cp=2")):
        shape = ("--train-file", data, "--per-device-train-batch-size",
                 str(batch), "--max-length", f"24,{LONGEST}",
                 *(("--parallel", mesh) if mesh else ()))
        case.compile(*shape,
                     *(cuda_flags() if options.target == "cuda" else ()))
        for choice in ("--step-packing=false", "--step-packing=true",
                       "--packing=true"):
            call(f"{case.tools}/qlora-run", case.module, "--config", case.yaml,
                 *shape, *choice.split("="), "--gpus", "2" if mesh else "1",
                 "--gradient-accumulation-steps", str(count // batch),
                 "--max-steps", "1", "--validation-file", data,
                 "--base-cache", "none", "--output-dir", out,
                 "--overwrite-output-dir")
            with open(os.path.join(out, "metrics.jsonl")) as lines:
                rows = [json.loads(line) for line in lines]
            found = [next(row[key] for row in rows if key in row)
                     for key in ("eval_loss", "loss", "grad_norm")]
            if choice == "--packing=true":  # fewer, longer sequences
                found = found[:1]
            loss, norm = ALONE[name]
            worst = max(relative(*pair)
                        for pair in zip(found, (loss, loss, norm)))
            assert worst <= TOLERANCE, (name, batch, mesh, choice, found)
            ways += 1
    print(f"{name}: {ways} ways to batch {count} rows, all as each row alone")


def products(case, choice, ranks, accumulation):
    """Returns the GFLOPs of the matmuls of a step, with those of padding."""
    trace = os.path.join(case.folder, "trace.json")
    train(case, choice, ranks, accumulation, "--profile", trace,
          "--profile-warmup", "0", "--profile-active", "2")
    with open(trace) as file:
        rows = json.load(file)["otherData"]["rows"]
    return sum(row.get("gflops", 0) * row["seconds"] for row in rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--target", default="cpu")
    options = parser.parse_args()
    options.library_path = None
    if options.target == "cuda":
        os.environ.update(cuda_environment(options, 2))
    with tempfile.TemporaryDirectory() as folder:
        case = Case(options.tools, "mistral-window", folder)
        data = os.path.join(folder, "rows.safetensors")
        lengths = write_rows(data, 43, 128, 1)
        write_rows(os.path.join(folder, "eval.safetensors"), 13, 128, 2)
        flags = ("--train-file", data, "--per-device-train-batch-size", "4",
                 "--max-length", f"24,{LONGEST}", "--compute-dtype", "float32",
                 *(cuda_flags() if options.target == "cuda" else ()))
        case.compile(*flags)
        evaluation = ("--validation-file",
                      os.path.join(folder, "eval.safetensors"))
        for ranks, accumulation in STEPS[options.target]:
            runs = [train(case, choice, ranks, accumulation, *evaluation)
                    for choice in ("false", "true")]
            worst, drift = compare(*runs)
            print(f"{ranks} ranks x {accumulation} micro-batches of 4 rows: "
                  f"metrics within {worst:.1e}, adapter within {drift:.1e}")
        padded, packed = (products(case, choice, 1, 2)
                          for choice in ("false", "true"))
        print(f"products of a step: {packed / padded:.2f} of the padded ones; "
              f"rows of {lengths.mean():.1f} tokens on average")
        assert packed < padded
        alone = train(case, "true", 1, 2, *evaluation)
        case.compile(*flags, "--parallel", "cp=2")
        worst, drift = compare(alone, train(case, "true", 2, 2, *evaluation))
        print(f"2 ranks that share each line: metrics within {worst:.1e}, "
              f"adapter within {drift:.1e}")
        for name in ALONE:
            own_lengths(options, os.path.join(folder, name), name)


if __name__ == "__main__":
    main()
