#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Compressed gradient reduction trains nearly like exact reduction.

    compression.py --tools build/bin

Two and four ranks with --ddp-comm-hook bf16, int8 and power_sgd: gradients of
the first step, losses and adapters are near those of the exact run, and nearer
with error feedback. A second run has the same bytes. Programs for CUDA, on the
software platform, have the losses of programs for the CPU. The same holds with
fsdp, tp and sharded updates. A resumed run has the same bytes. Unsupported
combinations are refused. (power_sgd.py checks PowerSGD's values.)
"""

import argparse
import os
import tempfile

import numpy as np

from goldens import cuda_environment, cuda_flags
from promises import Case, call, read
from safetensors_io import load

# Largest gradient error, relative to the norm.
#
#   bf16        every rank and every sum rounds each value, by at most 2^-8 of
#               it (root mean square: 1.5e-3)
#   int8        two roundings, each by at most half of 1/127 of the largest of
#               256 values
#   power_sgd   the gradient's component outside of the low-rank projection
GRADIENT = {"bf16": 6e-3, "int8": 2e-2, "power_sgd": 1}
# Largest difference of losses, and of adapters relative to the distance that
# training moved them. Measured for bf16 and int8: 8e-5 and 2e-3. Measured for
# power_sgd with rank 1 after 20 steps: 6e-2 and 2e-1 without error feedback,
# half of that with error feedback.
LOSS = {"bf16": 4e-4, "int8": 4e-4, "power_sgd": 1e-1}
ADAPTER = {"bf16": 5e-3, "int8": 5e-3, "power_sgd": 3e-1}
# Largest difference between power_sgd runs that differ only in summation order.
# The limits above are too wide to find errors in power_sgd, because its
# residuals are as large as the gradients.
SAME_LOSS, SAME_ADAPTER = 1e-5, 1e-4


class Runs:
    def __init__(self, case):
        self.case = case
        self.dump = os.path.join(case.folder, "dump.safetensors")

    def compile(self, hook, ranks, *flags, **named):
        return self.case.compile("--ddp-comm-hook", hook, "--ranks", str(ranks),
                                 *flags, **named)

    def train(self, ranks, *flags, rows=None):
        """Returns losses, adapter, its bytes, and step 1's gradients."""
        losses, text = self.case.train(
            "--gpus", str(ranks), "--gradient-accumulation-steps",
            str(4 // (rows or ranks)), "--threads", "1", "--dump", self.dump,
            *flags)
        adapter = load(os.path.join(self.case.folder, "out",
                                    "adapter_model.safetensors"))
        return losses, adapter, text, {
            name: value for name, value in load(self.dump).items()
            if name.startswith("grad.")}


def distance(found, wanted):
    """Returns the distance of all tensors together, relative to `wanted`."""
    far = sum(np.sum((found[name] - want) ** 2.) for name, want
              in wanted.items())
    return np.sqrt(far / sum(np.sum(want ** 2.) for want in wanted.values()))


def near(found, exact, what):
    """Checks the errors of a run; returns the distance of the adapters."""
    worst = np.abs(found[0] - exact[0]).max()
    far = distance(found[1], exact[1])
    error = distance(found[3], exact[3])
    print(f"ok   {what}: gradient {error:.1e}, losses {worst:.1e}, adapter "
          f"{far:.1e}", flush=True)
    hook = what.split()[0]
    assert 0 < worst < LOSS[hook], (what, worst)
    assert 0 < far < ADAPTER[hook], (what, far)
    assert 0 < error < GRADIENT[hook], (what, error)
    return far


def same(found, wanted, what):
    """Compares two runs of power_sgd, which may only differ by the order of
    sums."""
    worst = np.abs(found[0] - wanted[0]).max()
    far = distance(found[1], wanted[1])
    print(f"ok   {what}, {len(wanted[0])} steps compared: losses "
          f"{worst:.1e}, adapter {far:.1e}", flush=True)
    assert worst < SAME_LOSS and far < SAME_ADAPTER, (what, worst, far)


def check(runs, ranks):
    """Checks every hook. Returns the exact run, and the run with power_sgd."""
    runs.compile("no", ranks)
    exact = runs.train(ranks)
    runs.compile("bf16", ranks)
    near(runs.train(ranks), exact, f"bf16 on {ranks} ranks")
    for hook in ("int8", "power_sgd"):
        runs.compile(hook, ranks, "--disable-pass", "error-feedback")
        lost = near(runs.train(ranks), exact,
                    f"{hook} without feedback on {ranks}")
        runs.compile(hook, ranks)
        found = runs.train(ranks)
        fed = near(found, exact, f"{hook} on {ranks} ranks")
        assert fed < 0.8 * lost, (fed, lost)
        assert runs.train(ranks)[2] == found[2], "the second run differs"
    return exact, found


def layouts(runs, exact, low):
    for hook, mesh, rows in (("bf16", "tp=2", 2), ("int8", "fsdp=2", 4),
                             ("int8", "zero1=2", 4), ("int8", "cp=2", 2),
                             ("power_sgd", "fsdp=2", 4),
                             ("power_sgd", "zero1=2", 4),
                             ("power_sgd", "tp=2", 2),
                             ("power_sgd", "cp=2", 2)):
        runs.compile(hook, 4, "--parallel", mesh)
        found = runs.train(4, rows=rows)
        near(found, exact, f"{hook} with {mesh}")
        # These layouts assign rows to ranks as data parallelism does, so the
        # low-rank sums are equal, too.
        if hook == "power_sgd":
            same(found, low, f"{hook} with {mesh}")


def cards(runs, exact, low):
    os.environ.update(cuda_environment(runs.options, 4))
    for hook, ranks in (("bf16", 2), ("int8", 4), ("power_sgd", 2)):
        runs.compile(hook, ranks, *cuda_flags())
        found = runs.train(ranks)
        near(found, exact[ranks], f"{hook} on {ranks} GPUs")
        if hook == "power_sgd":
            same(found, low[ranks], f"{hook} on {ranks} GPUs")


def resumed(runs, exact):
    for hook in ("bf16", "int8", "power_sgd"):
        runs.compile(hook, 2)
        whole = runs.train(2, "--save-steps", "10")
        folder = runs.case.folder
        out = os.path.join(folder, "resumed-" + hook)
        call(f"{runs.case.tools}/qlora-run", runs.case.module, "--config",
             runs.case.yaml, "--base-cache", "none", "--gpus", "2", "--threads",
             "1", "--gradient-accumulation-steps", "2", "--output-dir", out,
             "--resume-from-checkpoint",
             os.path.join(folder, "out", "checkpoint-10"))
        file = os.path.join(out, "adapter_model.safetensors")
        assert read(file) == whole[2], hook
        assert distance(load(file), exact[1]) < ADAPTER[hook], hook
        print(f"ok   {hook}, resumed")


def refused(runs):
    def compiling(hook, ranks, said, *flags):
        text = runs.compile(hook, ranks, *flags, code=1)
        assert said in text, text

    def running(said, *flags):
        text = call(f"{runs.case.tools}/qlora-run", runs.case.module,
                    "--config", runs.case.yaml, "--output-dir",
                    os.path.join(runs.case.folder, "no"), *flags, code=1)
        assert said in text, text

    compiling("fp16", 2, "choose from: no, bf16, int8, power_sgd")
    sharded = "compressed sums need all of it on each rank"
    for hook in ("bf16", "int8", "power_sgd"):
        compiling(hook, 2, sharded, "--parallel", "zero2=2")
        compiling(hook, 2, sharded, "--parallel", "fsdp=2", "--modules-to-save",
                  "up_proj", "--lora-target-modules", "q_proj",
                  "--load-in-4bit", "false")
    compiling("bf16", 2, "--powersgd-rank needs --ddp-comm-hook power_sgd",
              "--powersgd-rank", "2")
    compiling("power_sgd", 2, "compresses no trainable tensor",
              "--powersgd-rank", "8")
    for hook in ("int8", "power_sgd"):
        compiling(hook, 1, "set it: qlora train --gpus N")
        for mesh in ("pp=2", "ep=2", "auto"):
            compiling(hook, 2, f"does not work with --parallel {mesh}",
                      "--parallel", mesh)
        runs.compile(hook, 2)
        running("compresses gradients for 2 ranks, but 3 were started",
                "--gpus", "3")
        running(f"compiled with --ddp-comm-hook {hook}", "--gpus", "2",
                "--reproducible-reductions", "true")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    options = parser.parse_args()
    options.library_path = None
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Case(options.tools, "qwen3-ranks", folder))
        runs.options = options
        exact, low = {}, {}
        for ranks in (2, 4):
            exact[ranks], low[ranks] = check(runs, ranks)
        layouts(runs, exact[4], low[4])
        resumed(runs, exact[2])
        refused(runs)
        cards(runs, exact, low)


if __name__ == "__main__":
    main()
