#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes power_sgd.safetensors: the results of torch's powerSGD_hook.

    power_sgd_golden.py

DistributedDataParallel runs on P = 2 processes (gloo). A case has a matrix [n,
m] that is approximated with rank r, and a vector. There are four cases: two
shapes, each with r = 1 and r = 2. In the first compressed step, torch draws the
basis Q. The file has for each case:

    NAME.basis            [r, m]: Q after the first compressed step, transposed
    NAME.residual         [P, n, m] after the first compressed step
    NAME.gradient         [steps, P, n, m] of the later steps
    NAME.mean             [steps, n, m]: the hook's mean of these gradients
    NAME.basis_after      [r, m] after the last step
    NAME.residual_after   [P, n, m] after the last step

Metadata has the version of torch.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS, STEPS, BEFORE = 2, 4, 2
CASES = {f"{n}x{m}r{rank}": (n, m, rank)
         for n, m in ((24, 40), (64, 16)) for rank in (1, 2)}


class Given(torch.nn.Module):
    """A module whose gradients are its input."""

    def __init__(self, n, m):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.zeros(n, m))
        self.vector = torch.nn.Parameter(torch.zeros(m))

    def forward(self, matrix, vector):
        return (self.matrix * matrix).sum() + (self.vector * vector).sum()


def gradients(n, m):
    """Draws a gradient of few directions and noise, partly the same in each
    step."""
    draw = torch.Generator().manual_seed(7)
    def normal(*shape):
        return torch.randn(*shape, generator=draw)
    shape = (BEFORE + 1 + STEPS, RANKS)
    matrix = (normal(*shape, n, 3) @ normal(*shape, 3, m) + normal(n, m)
              + 0.1 * normal(*shape, n, m))
    return matrix, normal(*shape, m)


def case(name, found, own):
    n, m, rank = CASES[name]
    given, vectors = gradients(n, m)
    state = hook.PowerSGDState(None, matrix_approximation_rank=rank,
                               start_powerSGD_iter=BEFORE)
    model = torch.nn.parallel.DistributedDataParallel(Given(n, m))
    order, means = [], []

    def recorded(state, bucket):
        order[:] = [parameter.numel() for parameter in bucket.parameters()]
        return hook.powerSGD_hook(state, bucket)

    model.register_comm_hook(state, recorded)

    def kept(after):
        """The hook's states are flat; the residual includes the vector."""
        flat = state.error_dict[0]
        matrix = model.module.matrix
        part = flat[:n * m] if order[0] == n * m else flat[-n * m:]
        every = [torch.empty_like(part) for _ in range(RANKS)]
        dist.all_gather(every, part.contiguous())
        found[f"{name}.residual{after}"] = torch.stack(every).view(
            RANKS, *matrix.shape)
        found[f"{name}.basis{after}"] = (
            state.q_memory_dict[0].view(m, rank).t().clone(
                memory_format=torch.contiguous_format))

    for step in range(len(given)):
        model.zero_grad()
        model(given[step, own], vectors[step, own]).backward()
        if step == BEFORE:
            kept("")
        if step > BEFORE:
            means.append(model.module.matrix.grad.clone())
            torch.testing.assert_close(model.module.vector.grad,
                                       vectors[step].mean(0))
    kept("_after")
    found[f"{name}.gradient"] = given[BEFORE + 1:].contiguous()
    found[f"{name}.mean"] = torch.stack(means)


def run(own, store, path):
    dist.init_process_group("gloo", init_method="file://" + store, rank=own,
                            world_size=RANKS)
    torch.set_num_threads(1)
    found = {}
    for name in CASES:
        case(name, found, own)
    if own == 0:
        save_file({key: value.contiguous() for key, value in found.items()},
                  path, {"torch": torch.__version__})
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run, (os.path.join(folder, "store"), os.path.join(
            HERE, "power_sgd.safetensors")), nprocs=RANKS)


if __name__ == "__main__":
    main()
