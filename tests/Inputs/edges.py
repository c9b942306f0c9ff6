# SPDX-License-Identifier: MIT

"""Measures how near a model comes to discontinuities: a token's choice of
experts, and the limits of a clamp, outside which the gradient is zero. Golden
cases must keep a distance from discontinuities. Otherwise a rounding error, for
example from a sum over ranks, could have a large effect."""

import contextlib

import torch

LEAST = 1e-4


@contextlib.contextmanager
def watched(model):
    """Yields a list that collects the distances of every call."""
    distances, clamp = [], torch.Tensor.clamp

    def route(router, inputs, _):
        logits = torch.nn.functional.linear(
            inputs[0].reshape(-1, router.weight.shape[-1]), router.weight,
            getattr(router, "bias", None)).detach()
        chosen = logits.topk(router.top_k + 1).values
        distances.append(float((chosen[:, -2] - chosen[:, -1]).min()))

    def watch(self, *limits, **named):
        for limit in (*limits, *named.values()):
            if limit is not None and self.is_floating_point():
                distances.append(float((self.detach() - limit).abs().min()))
        return clamp(self, *limits, **named)

    hooks = [module.register_forward_hook(route) for module in model.modules()
             if type(module).__name__.endswith("TopKRouter")]
    torch.Tensor.clamp = watch
    try:
        yield distances
    finally:
        torch.Tensor.clamp = clamp
        for hook in hooks:
            hook.remove()


def check(distances):
    nearest = min(distances, default=float("inf"))
    if nearest < LEAST:
        raise SystemExit(f"a value is {nearest:.1e} from an edge, of at least "
                         f"{LEAST:.0e}: take another seed")
