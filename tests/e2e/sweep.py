#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Several adapters at once have the same bytes as separate runs.

    sweep.py --tools build/bin

LoRA ranks 4 and 8 times two learning rates over one NF4 base, with evaluations
and checkpoints, from two programs: adapters, checkpoints and logged losses are
those of four separate runs, in float32 and bfloat16. A failing run does not
change the others. Unsupported settings are refused.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CASE = os.path.join(HERE, "..", "Inputs", "goldens", "llama-nf4")
RATES, RANKS = ("1e-3", "2e-3"), ("4", "8")


class Sweep:
    def __init__(self, tools, work):
        self.tools, self.work = tools, work
        self.environment = {**os.environ, "XDG_CACHE_HOME": work}
        self.start("qlora-import", os.path.join(CASE, "model"), "-o",
                   self.path("m.mlir"))

    def path(self, name):
        return os.path.join(self.work, name)

    def start(self, tool, *arguments, code=0):
        done = subprocess.run([os.path.join(self.tools, tool), *arguments],
                              capture_output=True, text=True,
                              env=self.environment)
        if done.returncode != code:
            sys.exit(f"FAIL {tool} {' '.join(arguments)}: exited "
                     f"{done.returncode}, expected {code}\n{done.stdout}"
                     f"{done.stderr}")
        return done

    def settings(self, *more):
        return ["--train-file", os.path.join(CASE, "batches.safetensors"),
                "--model-name-or-path", os.path.join(CASE, "model"), *more]

    def compile(self, rank, dtype):
        program = self.path(f"r{rank}-{dtype}.so")
        self.start("qloracc", "--target=cpu",
                   self.path("m.mlir"), "-o", program,
                   "--load-in-4bit", "--max-length", "32", "--lora-r", rank,
                   "--per-device-train-batch-size", "2", "--compute-dtype",
                   dtype, "--dequantize", "tiled", *self.settings())
        return program

    def train(self, programs, out, *more, code=0):
        return self.start(
            "qlora-run", *programs, "--output-dir", self.path(out),
            *self.settings("--max-steps", "6", "--logging-steps", "1",
                           "--gradient-accumulation-steps", "2",
                           "--validation-file",
                           os.path.join(CASE, "batches.safetensors"),
                           "--eval-strategy", "steps", "--eval-steps", "4",
                           "--save-steps", "5", *more), code=code)

    def read(self, *names):
        with open(self.path(os.path.join(*names)), "rb") as file:
            return file.read()

    def logged(self, folder):
        lines = self.read(folder, "metrics.jsonl").decode().splitlines()
        kept = ("step", "loss", "grad_norm", "learning_rate", "eval_loss")
        return [{name: line[name] for name in kept if name in line}
                for line in map(json.loads, lines)]

    def tensors(self, *names):
        """Returns the file's bytes after the header, which can contain
        times."""
        data = self.read(*names)
        return data[8 + int.from_bytes(data[:8], "little"):]

    def same(self, swept, alone):
        for name in ("adapter_model.safetensors",
                     "checkpoint-5/state.safetensors"):
            if self.tensors(swept, name) != self.tensors(alone, name):
                sys.exit(f"FAIL {swept}/{name} is not that of {alone}")
        if self.logged(swept) != self.logged(alone):
            sys.exit(f"FAIL {swept} logs other numbers than {alone}")


def check_bits(sweep, dtype):
    programs = [sweep.compile(rank, dtype) for rank in RANKS]
    sweep.train(programs, f"all-{dtype}", "--sweep",
                f"learning_rate={','.join(RATES)}",
                f"lora_r={','.join(RANKS)}")
    for rank, program in zip(RANKS, programs):
        for rate in RATES:
            alone = f"alone-{dtype}-{rank}-{rate}"
            sweep.train([program], alone, "--learning-rate", rate)
            sweep.same(f"all-{dtype}/learning_rate={rate},lora_r={rank}",
                       alone)
    if b"<html" not in sweep.read(f"all-{dtype}", "compare.html"):
        sys.exit("FAIL compare.html is no page")
    print(f"ok   {dtype}: four runs at once have the bytes of four runs")


def check_failure(sweep):
    """Checks that a run whose loss overflows ends alone."""
    program = sweep.path("r4-float32.so")
    done = sweep.train([program], "failing", "--sweep",
                       "learning_rate=1e-3,1e30", code=1)
    if "learning_rate=1e30: " not in done.stderr:
        sys.exit(f"FAIL no error names the run\n{done.stderr}")
    sweep.same("failing/learning_rate=1e-3", "alone-float32-4-1e-3")
    print("ok   a run that fails leaves the other alone")


def check_refusals(sweep):
    program = sweep.path("r4-float32.so")
    for more, text in (
            (["--sweep", "learning_rate=1e-3,1e-3"], "each value once"),
            (["--sweep", "learning_rat=1,2"], "did you mean 'learning_rate'"),
            (["--sweep", "output_dir=a,b"], "cannot be swept"),
            (["--sweep", "lora_r=4,16"], "was compiled with 4 and cannot"),
            (["--sweep", "seed=1,2", "--gpus", "2"], "several ranks"),
            (["--sweep", "seed=1,2", "--dump", "x"], "--dump"),
            (["--sweep", "seed=1,2", "--push-to-hub"], "one name")):
        done = sweep.train([program], "refused", *more, code=1)
        if text not in done.stderr or done.stderr.count("\n") != 1:
            sys.exit(f"FAIL {more}: expected '{text}', got\n{done.stderr}")
    if os.path.exists(sweep.path("refused")):
        sys.exit("FAIL what was refused has left a folder")
    print("ok   what does not go with a sweep is refused")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        sweep = Sweep(os.path.abspath(options.tools), work)
        for dtype in ("float32", "bfloat16"):
            check_bits(sweep, dtype)
        check_failure(sweep)
        check_refusals(sweep)


if __name__ == "__main__":
    main()
