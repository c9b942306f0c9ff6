#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a golden case of LLM.int8 with 8-bit activations. The model, adapter
and batches are those of another golden case of LLM.int8.

    int8_golden.py FROM TO

The reference is bitsandbytes' Linear8bitLt. On a GPU, it calls MatMul8bitLt; on
a CPU, it would call MatMul8bitFp. This script makes it call MatMul8bitLt, whose
ops also run on the CPU. Versions are in case.json.

An activation near the border between two codes may get either code, depending
on rounding errors in float32. With THRESHOLD, no activation of the single step
comes so near: changing it by the fraction MARGIN changes no code. The script
prints how many codes do change.

AdamW's epsilon is large. Otherwise gradients that are only rounding errors
would make full steps.
"""

import json
import os
import sys

import bitsandbytes as bnb
import bitsandbytes.autograd._functions as functions
import peft
import torch
from safetensors.torch import load_file, save_file

import other_golden

THRESHOLD, STEPS, MARGIN = 4.0, 1, 1e-6
functions.MatMul8bitFp = functions.MatMul8bitLt


def quantize(model):
    """Quantizes all linears except the head from float16, as transformers
    does."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or "lm_head" in name:
            continue
        linear = bnb.nn.Linear8bitLt(
            module.in_features, module.out_features, module.bias is not None,
            has_fp16_weights=False, threshold=THRESHOLD)
        codes, scales, _ = bnb.functional.int8_vectorwise_quant(
            module.weight.data.half())
        linear.weight = bnb.nn.Int8Params(codes, requires_grad=False,
                                          has_fp16_weights=False, CB=codes,
                                          SCB=scales)
        model.set_submodule(name, linear)
    return model


def watch(model):
    """Counts for each call the outlier columns, and the codes that change if
    the activations become larger or smaller by the fraction MARGIN."""
    seen = []

    def hook(module, arguments):
        x = arguments[0].detach().reshape(-1, arguments[0].shape[-1])
        got = [bnb.functional.int8_vectorwise_quant(
            (x * (1 + factor)).half(), threshold=THRESHOLD)
            for factor in (0, MARGIN, -MARGIN)]
        seen.append((len(got[0][2]), sum(int((got[0][0] != g[0]).sum())
                                         for g in got[1:])))
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear8bitLt):
            module.register_forward_pre_hook(hook)
    return seen


def write_yaml(source, to, values):
    """Writes train.yaml: the options of the case `source`, with paths to its
    files. `values` replaces some of the options."""
    with open(os.path.join(source, "train.yaml")) as file:
        options = {name: json.loads(value) for name, value in
                   (line.split(":", 1) for line in file)}
    for name in ("model_name_or_path", "train_file", "adapter_name_or_path"):
        options[name] = f"../{os.path.basename(source)}/{options[name]}"
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n"
                        for name, value in (options | values).items())


def main(source, to):
    os.makedirs(to, exist_ok=True)
    other_golden.STEPS = STEPS
    with open(os.path.join(source, "case.json")) as file:
        case = json.load(file)
    model = quantize(other_golden.load(os.path.join(source, "model")))
    model = peft.PeftModel.from_pretrained(
        model, os.path.join(source, "adapter_init"), is_trainable=True)
    seen = watch(model)
    saved = {t.data_ptr(): k for k, t in peft.get_peft_model_state_dict(
        model, save_embedding_layers=False).items()}
    named = {saved[p.data_ptr()]: p for p in model.parameters()
             if p.requires_grad}
    optimizer = torch.optim.AdamW(named.values(), lr=case["learning_rate"],
                                  eps=other_golden.EPSILON, weight_decay=0.0)
    expected = other_golden.train(
        model, optimizer, named, case,
        load_file(os.path.join(source, "batches.safetensors")))
    print(f"{sum(s[0] for s in seen)} outlier columns in {len(seen)} products, "
          f"{sum(s[1] for s in seen)} codes near a border, losses "
          f"{expected['loss'].tolist()}")
    save_file({k: v.contiguous() for k, v in expected.items()},
              os.path.join(to, "expected.safetensors"))
    write_yaml(source, to, {
        "max_steps": STEPS,
        "adam_epsilon": other_golden.EPSILON,
        "llm_int8_activations": "int8", "llm_int8_threshold": THRESHOLD})
    case |= {"steps": STEPS, "from": os.path.basename(source),
             "quantization": {"bits": 8, "activations": "int8",
                              "threshold": THRESHOLD},
             "reference": {"torch": torch.__version__.split("+")[0],
                           "transformers":
                                other_golden.transformers.__version__,
                           "peft": peft.__version__,
                           "bitsandbytes": bnb.__version__}}
    with open(os.path.join(to, "case.json"), "w") as file:
        json.dump(case, file, indent=2)


if __name__ == "__main__":
    main(*(arg.rstrip("/") for arg in sys.argv[1:3]))
