#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes the golden case TO of an optimizer. Its model and data are those of
the case FROM.

    optimizer_golden.py OPTIM FROM TO

The case trains LoRA with --optim OPTIM and a higher learning rate for B. If
FROM is a case of full fine-tuning, TO trains all weights, and OPTIM must be
muon, which trains the matrices; AdamW trains the vectors.

All LoRA cases start from the adapter of llama-adamw8bit. bitsandbytes uses 8
bits for tensors of 4096 elements or more: the adapter has smaller and larger
tensors. Their last blocks are partial, and no B is zero. expected.safetensors
also has the optimizer's states after the last step, as `state.`.

Needs what other_golden.py needs. Some values of OPTIM also need bitsandbytes or
schedulefree. The versions are in case.json.
"""

import importlib.metadata
import json
import os
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file

import other_golden
from other_golden import DECAY, EPSILON, RATIO, STEPS

TARGETS, RANK, WARMUP = ["q_proj", "k_proj"], 65, 3
ADAPTER_SEED = 11


def muon(groups, lr):
    """Returns torch's Muon, but with matmuls in float32, as in this project.
    torch's own Muon rounds the operands to bf16."""
    from torch.optim import _muon
    class InFloat32:
        bfloat16 = torch.float32
        def __getattr__(self, name):
            return getattr(torch, name)
    _muon.torch = InFloat32()
    return torch.optim.Muon(groups, lr=lr)


def optimizer_class(kind):
    """Returns the optimizer that transformers' Trainer makes."""
    if kind == "adamw_bnb_8bit":
        import bitsandbytes
        return lambda groups, lr: bitsandbytes.optim.AdamW(
            groups, lr=lr, optim_bits=8)
    if kind == "lion_32bit":
        import bitsandbytes
        return lambda groups, lr: bitsandbytes.optim.Lion(
            groups, lr=lr, betas=(0.9, 0.999))
    if kind == "adafactor":
        return lambda groups, lr: transformers.Adafactor(
            groups, lr=lr, scale_parameter=False, relative_step=False)
    if kind == "rmsprop":
        return lambda groups, lr: torch.optim.RMSprop(groups, lr=lr)
    if kind == "schedule_free_adamw":
        import schedulefree
        return lambda groups, lr: schedulefree.AdamWScheduleFree(
            groups, lr=lr, warmup_steps=WARMUP)
    return muon


def other_optimizer(model, case, kind):
    named, rate = other_golden.names_of(model), case["learning_rate"]
    groups = [{"params": [p for n, p in named.items() if "lora_A" in n],
               "weight_decay": DECAY, "lr": rate},
              {"params": [p for n, p in named.items() if "lora_B" in n],
               "weight_decay": DECAY, "lr": RATIO * rate}]
    return optimizer_class(kind)(groups, rate), named


class ByShape(torch.optim.Optimizer):
    """Muon for matrices; AdamW, without decay, for vectors."""

    def __init__(self, named, rate):
        matrices = [p for p in named.values() if p.dim() >= 2]
        vectors = [p for p in named.values() if p.dim() < 2]
        self.parts = [
            muon([{"params": matrices, "weight_decay": DECAY}], rate),
            torch.optim.AdamW(vectors, lr=rate, eps=EPSILON, weight_decay=0.0)]
        super().__init__([group for part in self.parts
                          for group in part.param_groups], {})

    def step(self):
        for part in self.parts:
            part.step()
            self.state.update(part.state)


def new_adapter(model, to, kind):
    # With ADAPTER_SEED, noise of 1e-7 of the gradients' scale changes at most
    # 0.7 % of the codes of 8-bit states. With other seeds it changes 2.4 %,
    # because the largest value of a block is on the edge of a code.
    torch.manual_seed(ADAPTER_SEED)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=RANK, lora_alpha=RANK, target_modules=TARGETS,
        init_lora_weights=False, task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, std=0.05)
    if kind == "adamw_bnb_8bit":
        model.save_pretrained(os.path.join(to, "adapter_init"))
        os.remove(os.path.join(to, "adapter_init", "README.md"))
    return model


def states(optimizer, named):
    return {f"state.{name}.{key}": value.detach().clone()
            for name, p in named.items()
            for key, value in optimizer.state[p].items()
            if torch.is_tensor(value) and value.numel() > 1
            and not key.startswith("qmap")}


def write_yaml(source, to, kind):
    values = other_golden.settings(source)
    beside = "../" + os.path.basename(source) + "/"
    for name in ("model_name_or_path", "train_file"):
        values[name] = os.path.normpath(beside + values[name])
    if values.get("finetuning_type") != "full":
        values |= {"loraplus_lr_ratio": RATIO, "lora_r": RANK,
                   "lora_alpha": RANK, "lora_target_modules": TARGETS,
                   "adapter_name_or_path":
                       "adapter_init" if kind == "adamw_bnb_8bit"
                       else "../llama-adamw8bit/adapter_init"}
    values |= {"max_steps": STEPS, "weight_decay": DECAY, "optim": kind,
               "save_steps": 0}
    if kind == "schedule_free_adamw":
        values["warmup_steps"] = WARMUP
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n"
                        for name, value in values.items())


def main(kind, source, to):
    os.makedirs(to, exist_ok=True)
    with open(os.path.join(source, "case.json")) as file:
        case = json.load(file)
    values = other_golden.settings(source)
    model = other_golden.load(os.path.join(source, "model"))
    if values.get("finetuning_type") == "full":
        named = dict(model.named_parameters())
        optimizer = ByShape(named, case["learning_rate"])
    else:
        model = new_adapter(model, to, kind)
        optimizer, named = other_optimizer(model, case, kind)
    batches = load_file(os.path.join(source, values["train_file"]))
    expected = other_golden.train(model, optimizer, named, case, batches)
    expected |= states(optimizer, named)
    write_yaml(source, to, kind)
    other_golden.write_case(
        source, to, case, kind, expected,
        {name: importlib.metadata.version(name)
         for name in ("bitsandbytes", "schedulefree") if name in sys.modules})


if __name__ == "__main__":
    main(*(arg.rstrip("/") for arg in sys.argv[1:4]))
