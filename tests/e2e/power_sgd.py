#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""--ddp-comm-hook power_sgd computes what torch's powerSGD_hook does.

    power_sgd.py --tools build/bin

A few lines of numpy reproduce the results of torch's hook for given gradients
on two ranks (Inputs/power_sgd_golden.py). The same code checks every step and
every matrix of a run on two ranks. The update's gradient, and the next
checkpoint's basis and residuals, follow from the checkpoint before. The ranks'
gradients add up to that of an exact run. A resumed run has the same bytes, and
on another number of ranks it starts with the sum of all residuals.
"""

import argparse
import os
import re
import tempfile

import numpy as np

from promises import Case, call, read
from safetensors_io import load

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, RANKS, BATCHES, BETA1 = 4, 2, 4, 0.9
# Limits for sums of some hundred f32 values in a different order, relative to a
# tensor's largest value. Measured: at most 7e-7.
TORCH, RUN = 3e-6, 5e-6


def direction(x, others):
    least = max(1e-6 * np.linalg.norm(x), 1e-30)
    for other in others:
        x = x - (other @ x) * other
    left = np.linalg.norm(x)
    return x / left if left >= least else np.zeros_like(x)


def orthonormal(rows):
    made = []
    for x in rows:
        made.append(direction(x, made))
    return np.stack(made)


def product(x, basis):
    """Returns the low-rank approximation of the sum of x over the ranks, and
    the next basis."""
    p = orthonormal(sum(orthonormal(basis) @ one.T for one in x))
    q = sum(p @ one for one in x)
    isThere = (q * q).sum(1, keepdims=True) > 0
    return p.T @ q, np.where(isThere, q, basis)


def near(found, wanted, limit, what):
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error < limit, (what, error)
    return error


def check_torch():
    """Compares with the results of torch's hook. The hook computes means over
    ranks and keeps the mean of Q."""
    golden = load(os.path.join(HERE, "..", "Inputs", "power_sgd.safetensors"))
    worst = 0
    for name in {key.split(".")[0] for key in golden}:
        of = lambda key: golden[f"{name}.{key}"]
        left, basis = of("residual"), of("basis")
        for step, gradient in enumerate(of("gradient")):
            x = gradient + left
            whole, basis = product(x, basis)
            left = x - whole / len(x)
            worst = max(worst, near(whole / len(x), of("mean")[step], TORCH,
                                    (name, step)))
        near(left, of("residual_after"), TORCH, name)
        near(basis / len(x), of("basis_after"), TORCH, name)
    print(f"ok   torch's hook: {worst:.1e}", flush=True)


def train(case, out, *flags):
    call(f"{case.tools}/qlora-run", case.module, "--config", case.yaml,
         "--base-cache", "none", "--threads", "1", "--output-dir", out, *flags)


def trained(out):
    """Returns the bytes of a run's adapter or model."""
    [file] = [name for name
              in ("adapter_model.safetensors", "model.safetensors")
              if os.path.exists(os.path.join(out, name))]
    return read(os.path.join(out, file))


class Checkpoints:
    """A run with a checkpoint after every step."""

    def __init__(self, case, rank, *flags):
        self.case, self.rank = case, rank
        case.compile("--ddp-comm-hook", "power_sgd", "--powersgd-rank",
                     str(rank), "--ranks", str(RANKS), *flags)
        self.run = ["--gpus", str(RANKS), "--max-steps", str(STEPS),
                    "--save-steps", "1", "--max-grad-norm", "0",
                    "--gradient-accumulation-steps", str(BATCHES // RANKS)]
        self.folder = os.path.join(case.folder, f"rank-{rank}")
        train(case, self.folder, *self.run)
        for step in range(1, STEPS):
            self.resume(step)

    def path(self, step, file):
        return os.path.join(self.folder, f"checkpoint-{step}", file)

    def resume(self, step):
        """Resumes from a step to the end, and checks that the result has the
        bytes of the run."""
        out = os.path.join(self.case.folder, f"resumed-{self.rank}-{step}")
        train(self.case, out, *self.run, "--resume-from-checkpoint",
              os.path.join(self.folder, f"checkpoint-{step}"))
        assert trained(out) == trained(self.folder), step
        for file in ("state.safetensors", "residuals.safetensors"):
            found = load(os.path.join(out, f"checkpoint-{STEPS}", file))
            assert all(value.tobytes() == found[name].tobytes() for name, value
                       in load(self.path(STEPS, file)).items()), (step, file)


def labels(case, step):
    """Returns the number of labels in a step, by which the update's gradient is
    divided. The first token of each row has no label."""
    with open(case.yaml) as file:
        name = re.search(r'^train_file: "(.*)"', file.read(), re.M).group(1)
    rows = load(os.path.join(os.path.dirname(case.yaml), name))["labels"]
    batches = np.arange((step - 1) * BATCHES, step * BATCHES) % len(rows)
    return (rows[batches, :, 1:] != -100).sum()


def sums(state, before, count):
    """Returns the gradients of a step by name, computed from the first
    moments."""
    end = ".exp_avg"
    return {key[:-len(end)]:
            (value - BETA1 * before.get(key, 0)) / (1 - BETA1) * count
            for key, value in state.items() if key.endswith(end)}


def check_steps(run, exact):
    """Checks that basis and gradients of each step follow from its operands
    x[t, r] = residual[t, r] + sum[t] / N, for step t and rank r."""
    worst, products, vectors = 0, 0, 0
    before = {}
    for step in range(1, STEPS + 1):
        state = load(run.path(step, "state.safetensors"))
        left = load(run.path(step, "residuals.safetensors"))
        count = labels(run.case, step)
        for name, whole in sums(state, before, count).items():
            key = name + ".powersgd_basis"
            x = left[name] + whole / RANKS
            if step == 1:
                near(x.sum(0), exact[name] * count, RUN, (name, "exact"))
            if key not in state:
                assert not left[name].any(), name
                vectors += 1
            if step == 1 or key not in state:
                continue
            found, basis = product(x, before[key])
            near(basis, state[key], RUN, (name, step, "basis"))
            worst = max(worst, near(found, whole, RUN, (name, step)))
            products += 1
        before = state
    assert products > 2 * STEPS, products
    print(f"ok   {run.rank} rows: {products} products, {worst:.1e}; {vectors} "
          "sums as they are", flush=True)
    return vectors


def check_other_ranks(run):
    """Checks that four ranks, with residuals of two ranks and the same
    gradients, compute the same sums."""
    case, first = run.case, 2
    case.compile("--ddp-comm-hook", "power_sgd", "--powersgd-rank",
                 str(run.rank), "--ranks", "4")
    wide = os.path.join(case.folder, "wide")
    train(case, wide, *run.run, "--gpus", "4", "--gradient-accumulation-steps",
          str(BATCHES // 4), "--resume-from-checkpoint",
          os.path.dirname(run.path(first, "state.safetensors")))
    before = load(run.path(first, "state.safetensors"))
    found = []
    for folder, ranks in ((run.folder, RANKS), (wide, 4)):
        path = os.path.join(folder, f"checkpoint-{first + 1}")
        state = load(os.path.join(path, "state.safetensors"))
        left = load(os.path.join(path, "residuals.safetensors"))
        assert all(len(value) == ranks for value in left.values())
        whole = sums(state, before, labels(case, first + 1))
        found.append({name: (left[name] + value / ranks).sum(0)
                      for name, value in whole.items()})
    worst = max(near(value, found[0][name], RUN, name)
                for name, value in found[1].items())
    print(f"ok   two ranks' checkpoint on four: {worst:.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    options = parser.parse_args()
    check_torch()
    for name, ranks in (("qwen3-ranks", (1, 2)), ("llama-full", (1,))):
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            case = Case(options.tools, name, folder)
            case.compile()
            dump = os.path.join(folder, "exact.safetensors")
            train(case, os.path.join(folder, "exact"), "--gpus", str(RANKS),
                  "--max-steps", "1", "--gradient-accumulation-steps",
                  str(BATCHES // RANKS), "--dump", dump)
            exact = {key[len("grad."):]: value
                     for key, value in load(dump).items()
                     if key.startswith("grad.")}
            for rank in ranks:
                run = Checkpoints(case, rank)
                vectors = check_steps(run, exact)
            # Only the full model has vectors, such as weights of norms.
            assert (vectors > 0) == (name == "llama-full"), vectors
            check_other_ranks(run)


if __name__ == "__main__":
    main()
