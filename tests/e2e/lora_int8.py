#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Effects of --activation-dtype-for-lora int8 on memory and on training.

    lora_int8.py --tools build/bin [--target cuda] [CASE ...]

Trains golden cases in float32, with and without int8. Only dA is computed from
8-bit values, so the logits, the first step's losses and the gradients of all B
are the same to the bit. The gradients of A are the exact ones plus the noise of
rounding to 127 steps. Their projection on the exact gradients is 1 within 0.3 %
(with a scale of max / 128 it would differ by 0.8 %). Later losses stay close.
The plan saves more than half of the bytes that the compiler estimates for int8,
and no more than the estimate. If int8 is combined with a memory limit, losses
change only by rounding.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np

import goldens

CASES = ["llama-nf4", "qwen2-nf4", "qwen3-ranks", "llama-dropout"]
OPTION = ["--activation-dtype-for-lora", "int8"]
# PROJECTION, NOISE and LEAST_NOISE are relative to the norm of the gradient,
# LOSS to the loss.
PROJECTION, NOISE, LEAST_NOISE, LOSS = 3e-3, 2e-2, 1e-3, 1e-3


def trained(options, case, *flags):
    """Returns plan, losses and dump of a case compiled with `flags`."""
    flags, environment = list(flags), None
    if options.target == "cuda":
        flags += goldens.cuda_flags()
        environment = goldens.cuda_environment(options, 1)
    with open(os.path.join(case, "case.json")) as file:
        described = json.load(file)
    steps = (described["gradient_accumulation_steps"]
             * described.get("ranks", 1))
    with tempfile.TemporaryDirectory() as work:
        report = os.path.join(work, "plan.json")
        module = goldens.build(options.tools, case, work,
                               flags + ["--plan-report", report])
        metrics, dump, *_ = goldens.train(
            options.tools, case, work, module,
            ["--gradient-accumulation-steps", str(steps)], 1, environment)
        with open(report) as file:
            plan = json.load(file)
    return plan, np.array([step["loss"] for step in metrics]), dump


def gradient(dump, matrix):
    """Returns the first step's gradients of all A or all B, as a vector."""
    names = sorted(name for name in dump if name.startswith("grad.")
                   and f".{matrix}." in name)
    assert names, f"the dump has no gradient of {matrix}"
    return np.concatenate([dump[name].ravel() for name in names]).astype(
        np.float64)


def compare(options, case):
    exact_plan, exact_losses, exact = trained(options, case)
    plan, losses, dump = trained(options, case, *OPTION)
    assert (dump["logits"] == exact["logits"]).all(), "logits differ"
    assert losses[0] == exact_losses[0], "the first loss differs"
    assert (gradient(dump, "lora_B") == gradient(exact, "lora_B")).all(), \
        "gradients of B differ"
    want, got = gradient(exact, "lora_A"), gradient(dump, "lora_A")
    projection = got @ want / (want @ want)
    noise = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert abs(projection - 1) < PROJECTION, f"projection {projection}"
    assert LEAST_NOISE < noise < NOISE, f"noise {noise}"
    worst = np.abs(losses / exact_losses - 1).max()
    assert worst < LOSS, f"losses differ by {worst}"
    encoded = plan["encode-activations"]
    said = encoded["exact_bytes"] - encoded["encoded_bytes"]
    assert "encode-activations" not in exact_plan
    saved = exact_plan["total_bytes"] - plan["total_bytes"]
    assert 0.5 * said < saved <= said, (saved, said)
    limit = plan["total_bytes"] - plan["arenas"]["activation"] // 5
    limited_plan, limited, _ = trained(options, case, *OPTION,
                                       "--memory-limit", f"{limit}B")
    assert limited_plan["total_bytes"] <= limit
    assert np.abs(limited - losses).max() < goldens.LOSS, "the limit matters"
    return (f"{encoded['values']} values, activations "
            f"{exact_plan['arenas']['activation']} -> "
            f"{plan['arenas']['activation']} bytes, projection "
            f"{projection:.5f}, noise {noise:.2%}, last loss "
            f"{exact_losses[-1]:.5f} -> {losses[-1]:.5f} after "
            f"{len(losses)} steps")


def refuses_checkpointing(options, case):
    try:
        trained(options, case, *OPTION, "--gradient-checkpointing")
    except goldens.Failure as failure:
        assert "keeps none; remove one" in str(failure)
        return
    raise AssertionError("--gradient-checkpointing was not refused")


def main():
    parser = argparse.ArgumentParser()
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tools", required=True)
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    options.library_path = None
    cases = [os.path.join(here, "..", "Inputs", "goldens", name)
             for name in options.names or CASES]
    for case in cases:
        print(f"ok   {os.path.basename(case)}: {compare(options, case)}",
              flush=True)
    refuses_checkpointing(options, cases[0])
    print(f"lora_int8: {len(cases)} passed")


if __name__ == "__main__":
    sys.exit(main())
