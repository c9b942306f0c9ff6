#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""adamw_8bit.py FILE: bitsandbytes' 8-bit AdamW, step by step, on a CPU.

The tensor has 600 elements: three blocks, the last one partial. FILE has
`start`, and for each of six steps `gradient`, and `p`, `state1`, `state2`,
`absmax1`, `absmax2` after it. The second block has no gradient at first;
magnitudes of the others span six decades. Versions are in the metadata.
"""

import importlib.metadata
import sys

import bitsandbytes
import torch
from safetensors.torch import save_file

ELEMENTS, STEPS = 600, 6


def main(path):
    torch.manual_seed(5)
    p = torch.nn.Parameter(0.1 * torch.randn(ELEMENTS))
    optimizer = bitsandbytes.optim.AdamW8bit(
        [p], lr=1e-2, weight_decay=0.1, min_8bit_size=1)
    kept = {"start": [p.detach().clone()]}
    for step in range(STEPS):
        p.grad = (torch.randn(ELEMENTS) * torch.rand(ELEMENTS) ** 6)
        if step < 2:
            p.grad[256:512] = 0
        kept.setdefault("gradient", []).append(p.grad.clone())
        optimizer.step()
        kept.setdefault("p", []).append(p.detach().clone())
        for name in ("state1", "state2", "absmax1", "absmax2"):
            kept.setdefault(name, []).append(optimizer.state[p][name].clone())
    save_file({name: torch.stack(values) for name, values in kept.items()},
              path, metadata={name: importlib.metadata.version(name)
                              for name in ("bitsandbytes", "torch")})


if __name__ == "__main__":
    main(*sys.argv[1:])
