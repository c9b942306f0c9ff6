#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""With --reproducible-reductions the number of ranks changes no bit.

    reproducible.py --tools build/bin [--target cuda]

Rows of many lengths in steps of 12 or 24 micro-batches, complete epochs with
their ends, with dropout: 1, 2, 4 and 8 ranks give the same adapters and states,
and log the same losses and norms. This holds padded and with step packing, with
sharded updates, and if one rank resumes a run of four. It does not hold without
the option, nor if the number of ranks is no power of two.
"""

import argparse
import os
import json
import tempfile

from goldens import cuda_environment, cuda_flags
from step_packing import LONGEST, write_rows
from promises import Case, call
from safetensors_io import load

RANKS = {"cpu": (1, 2, 4, 8), "cuda": (1, 2)}


def command(case, out, ranks, perStep, *flags):
    return [f"{case.tools}/qlora-run", case.module, "--gpus", str(ranks),
            "--threads", "1", "--gradient-accumulation-steps",
            str(perStep // ranks), "--logging-steps", "1", "--base-cache",
            "none", "--save-steps", "2", "--learning-rate", "1e-2",
            "--output-dir", os.path.join(case.folder, out), *flags]


def outcome(case, out):
    """Returns all results that must be equal for any number of ranks."""
    folder = os.path.join(case.folder, out)
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        rows = [json.loads(line) for line in lines]
    tensors = {**load(f"{folder}/adapter_model.safetensors"),
               **load(f"{folder}/checkpoint-2/state.safetensors")}
    return ([(row["step"], row["loss"], row["grad_norm"])
             for row in rows if "grad_norm" in row],
            {name: tensor.tobytes() for name, tensor in tensors.items()})


def train(case, ranks, perStep, *flags):
    call(*command(case, "out", ranks, perStep, "--overwrite-output-dir",
                  *flags))
    return outcome(case, "out")


def check(case, name, perStep, ranks, *flags):
    always = ("--reproducible-reductions", "true", "--num-train-epochs", "2",
              "--max-steps", "-1", *flags)
    wanted = train(case, ranks[0], perStep, *always)
    assert len(wanted[0]) > 2, wanted[0]
    for number in ranks[1:]:
        assert train(case, number, perStep, *always) == wanted, (name, number)
    print(f"ok   {name}: {', '.join(map(str, ranks))} ranks, "
          f"{len(wanted[0])} steps of {perStep} micro-batches", flush=True)
    return wanted


def resumed(case, wanted, perStep, *flags):
    """Starts a run on four ranks, and resumes it on one."""
    always = ("--reproducible-reductions", "true", "--max-steps", "-1",
              "--num-train-epochs", "2", *flags)
    call(*command(case, "four", 4, perStep, "--overwrite-output-dir", *always))
    call(*command(case, "one", 1, perStep, *always, "--resume-from-checkpoint",
                  os.path.join(case.folder, "four", "checkpoint-2")))
    folder = os.path.join(case.folder, "one")
    adapter = load(f"{folder}/adapter_model.safetensors")
    for name, tensor in adapter.items():
        assert tensor.tobytes() == wanted[1][name], name
    print("ok   begun by four ranks, ended by one")


def refused(case):
    text = call(*command(case, "no", 3, 12, "--reproducible-reductions",
                         "true"), code=1)
    assert "as the number of ranks, not 3. Fix: start 2" in text, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--target", default="cpu")
    options = parser.parse_args()
    options.library_path = None
    ranks = RANKS[options.target]
    if options.target == "cuda":
        os.environ.update(cuda_environment(options, max(ranks)))
    with tempfile.TemporaryDirectory() as folder:
        case = Case(options.tools, "llama-lora", folder)
        data = os.path.join(folder, "rows.safetensors")
        write_rows(data, 75, 128, 1)
        flags = ("--train-file", data)
        compiled = ("--per-device-train-batch-size", "2", "--max-length",
                    f"24,{LONGEST}", "--compute-dtype", "float32",
                    "--lora-dropout", "0.1", *flags,
                    *(cuda_flags() if options.target == "cuda" else ()))
        case.compile(*compiled)
        padded = ("--step-packing", "false", *flags)
        wanted = check(case, "padded", 24, ranks, *padded)
        check(case, "padding free", 12, ranks[:3], "--step-packing", "true",
              *flags)
        if options.target == "cuda":
            return
        plain = [train(case, number, 24, "--num-train-epochs", "2",
                       "--max-steps", "-1", *padded) for number in (1, 4)]
        assert plain[0] != plain[1], "the same without a tree: nothing is shown"
        resumed(case, wanted, 24, *padded)
        refused(case)
        case.compile(*compiled, "--parallel", "zero1=2")
        check(case, "sharded updates", 24, (2, 4), *padded)


if __name__ == "__main__":
    main()
