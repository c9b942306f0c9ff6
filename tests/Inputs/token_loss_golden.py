#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a golden case of a loss of tokens, as TRL's SFTTrainer computes it,
with the model, first adapter and batches of another case.

    token_loss_golden.py KIND FROM TO

KIND is a key of KINDS. The loss of a micro-batch is the result of the trainer's
`compute_loss`, with the trainer's own count of the tokens in a step. Needs the
packages of preference_golden.py.
"""

import json
import os
import sys
import tempfile

import datasets
import peft
import torch
import transformers
import trl
from safetensors.torch import load_file, save_file

from preference_golden import (
    NAMES, load_config, load_model, load_start, tokenizer)

# TRL's options, which have the same names here.
KINDS = {"dft": {"loss_type": "dft"},
         "smooth": {"label_smoothing_factor": 0.1}}
STEPS, ACCUMULATION = 5, 2


def make_trainer(kind, model, config, folder):
    settings = trl.SFTConfig(
        output_dir=folder, report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False, **KINDS[kind])
    return trl.SFTTrainer(
        model=model, args=settings, peft_config=config,
        train_dataset=datasets.Dataset.from_list([{"text": "w1 w2"}] * 4),
        processing_class=tokenizer())


def train(trainer, named, batches, settings):
    optimizer = torch.optim.AdamW(
        named.values(), lr=settings["learning_rate"],
        eps=settings["adam_epsilon"], weight_decay=0.0)
    losses, norms, expected = [], [], {}
    for step in range(STEPS):
        inputs = [{"input_ids": batches["input_ids"][i].long(),
                   "labels": batches["labels"][i].long()}
                  for i in range(step * ACCUMULATION,
                                 (step + 1) * ACCUMULATION)]
        count = trainer._get_num_items_in_batch(inputs, torch.device("cpu"))
        total = 0.0
        for rows in inputs:
            rows["attention_mask"] = torch.ones_like(rows["input_ids"])
            loss = trainer.compute_loss(trainer.model, rows,
                                        num_items_in_batch=count)
            loss.backward()
            total += loss.item()
        if step == 0:
            expected |= {"grad." + name: p.grad.clone()
                         for name, p in named.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(
            named.values(), settings["max_grad_norm"])))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    expected |= {"final." + name: p.detach() for name, p in named.items()}
    return expected | {
        "loss": torch.tensor(losses), "grad_norm": torch.tensor(norms),
        "learning_rate": torch.full((STEPS,), settings["learning_rate"])}


def main(kind, source, to):
    os.makedirs(to, exist_ok=True)
    with open(os.path.join(source, "train.yaml")) as file:
        settings = {name: json.loads(value) for name, value in
                    (line.split(":", 1) for line in file)}
    batches = load_file(os.path.join(source, settings["train_file"]))
    start = os.path.join(source, "adapter_init")
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(kind, load_model(source), load_config(start),
                               folder)
    named = load_start(trainer.model, start)
    expected = train(trainer, named, batches, settings)
    save_file({name: value.contiguous() for name, value in expected.items()},
              os.path.join(to, "expected.safetensors"))
    for name in (*NAMES, "train_file"):
        settings[name] = os.path.relpath(os.path.join(source, settings[name]),
                                         to)
    settings |= {"gradient_accumulation_steps": ACCUMULATION,
                 "max_steps": STEPS, **KINDS[kind]}
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n"
                        for name, value in settings.items())
    with open(os.path.join(to, "case.json"), "w") as file:
        json.dump({"kind": kind, "from": os.path.basename(source),
                   "gradient_accumulation_steps": ACCUMULATION, "steps": STEPS,
                   "reference": {
                       module.__name__: module.__version__.split("+")[0]
                       for module in (torch, transformers, peft, trl)}},
                  file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main(*(arg.rstrip("/") for arg in sys.argv[1:]))
