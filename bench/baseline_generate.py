#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The peer of generate.py: transformers + PEFT + bitsandbytes on a CPU.

    baseline_generate.py --model DIR --adapter DIR [--compute float32|bfloat16]
                         [--batch 1]

Loads the model as baseline_cpu.py does, and prints a line of JSON. For each
line {"prompts": [[...], ...], "new": N} on standard input, generates N tokens
greedily for prompts of one length, and prints the seconds of the prompts and of
the decode, the number of decoded tokens, the peak of resident bytes, and the
tokens. A step is a call of the model, without the work that generate() adds.
"""

import argparse
import json
import os
import sys
import time

import torch

import baseline_cpu
from baseline_cpu import say


def load(options):
    loaded, _ = baseline_cpu.load(argparse.Namespace(
        model=options.model, adapter=options.adapter, mode="nf4",
        compute={"float32": "f32", "bfloat16": "bf16"}[options.compute],
        checkpointing=False))
    loaded.eval()
    loaded.config.use_cache = True
    return loaded


@torch.inference_mode()
def generate(model, prompts, new):
    start = time.perf_counter()
    step = model(input_ids=torch.tensor(prompts), use_cache=True,
                 logits_to_keep=1)
    tokens = [step.logits[:, -1].argmax(-1)]
    first = time.perf_counter()
    for _ in range(new - 1):
        step = model(input_ids=tokens[-1][:, None], use_cache=True,
                     past_key_values=step.past_key_values)
        tokens.append(step.logits[:, -1].argmax(-1))
    return {"prefill_seconds": first - start,
            "decode_seconds": time.perf_counter() - first,
            "decoded": len(prompts) * (new - 1),
            "peak": baseline_cpu.peak_bytes(),
            "tokens": torch.stack(tokens, 1).tolist()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--compute", default="float32",
                        choices=("float32", "bfloat16"))
    parser.add_argument("--batch", type=int, default=1,
                        help="ignored: a batch is what a line has")
    options = parser.parse_args()
    baseline_cpu.stay_in_memory()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    half = options.compute == "bfloat16"
    model = load(options)
    baseline_cpu.forget_peak()
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            say(**generate(model, request["prompts"], request["new"]))


if __name__ == "__main__":
    main()
