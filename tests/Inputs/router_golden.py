#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a golden case of a model whose routers have their auxiliary loss.

    router_golden.py FROM TO

FROM is a case of a model with experts. Its weights (a link) and first adapter
are shared. Micro-batches come in pairs; the second of each has padding. The
loss is transformers' for labels, a mask and `output_router_logits`. Over the
micro-batches of a step the routers' loss is averaged, as in TRL's SFTTrainer;
transformers' own Trainer would add it up. Needs what other_golden.py needs.
"""

import json
import os
import sys

import peft
import torch
from safetensors.torch import load_file, save_file

import other_golden
from other_golden import EPSILON, STEPS, load, names_of, settings

COEFFICIENT, ACCUMULATION, PADDED = 0.5, 2, 9


def write_model(source, to):
    os.makedirs(to, exist_ok=True)
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    config |= {"output_router_logits": True,
               "router_aux_loss_coef": COEFFICIENT}
    with open(os.path.join(to, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    link = os.path.join(to, "model.safetensors")
    if not os.path.lexists(link):
        os.symlink(os.path.relpath(os.path.join(source, "model.safetensors"),
                                   to), link)


def padded(batches):
    """The last tokens of one row of every second micro-batch are padding."""
    segments = torch.ones_like(batches["input_ids"])
    segments[1::2, 1, -PADDED:] = 0
    labels = batches["labels"].clone()
    labels[segments == 0] = -100
    return {"input_ids": batches["input_ids"], "labels": labels,
            "segment_ids": segments}


def train(model, named, case, batches):
    optimizer = torch.optim.AdamW(named.values(), lr=case["learning_rate"],
                                  eps=EPSILON, weight_decay=0.0)
    ids, labels, segments = (batches[name].long() for name in
                             ("input_ids", "labels", "segment_ids"))
    expected, losses, norms, routers = {}, [], [], []
    model.train()
    for step in range(STEPS):
        rows = range(step * ACCUMULATION, (step + 1) * ACCUMULATION)
        count = sum(int((labels[i][:, 1:] != -100).sum()) for i in rows)
        total = auxiliary = 0.0
        for i in rows:
            out = model(input_ids=ids[i], labels=labels[i],
                        attention_mask=(segments[i] != 0).long(),
                        num_items_in_batch=count)
            expected.setdefault("logits", out.logits.detach().clone())
            loss = out.loss - (1 - 1 / ACCUMULATION) * (COEFFICIENT
                                                        * out.aux_loss)
            loss.backward()
            total += loss.item()
            auxiliary += out.aux_loss.item() / ACCUMULATION
        if step == 0:
            expected |= {"grad." + name: p.grad.clone()
                         for name, p in named.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(
            named.values(), case["max_grad_norm"])))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        routers.append(auxiliary)
    return expected | {"final." + name: p.detach() for name, p in
                       named.items()} | {
        "loss": torch.tensor(losses), "grad_norm": torch.tensor(norms),
        "logged.aux_loss": torch.tensor(routers),
        "learning_rate": torch.full((STEPS,), case["learning_rate"])}


def write_yaml(source, to):
    values = settings(source)
    beside = "../" + os.path.basename(source) + "/"
    values |= {
        "adapter_name_or_path": beside + values["adapter_name_or_path"],
        "load_in_4bit": False, "max_steps": STEPS, "adam_epsilon": EPSILON,
        "gradient_accumulation_steps": ACCUMULATION}
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n" for name, value in
                        values.items() if not name.startswith("bnb_"))


def main(source, to):
    model_folder = os.path.join(to, "model")
    write_model(os.path.join(source, "model"), model_folder)
    with open(os.path.join(source, "case.json")) as file:
        case = json.load(file)
    batches = padded(load_file(os.path.join(source, "batches.safetensors")))
    save_file(batches, os.path.join(to, "batches.safetensors"))
    base = load(model_folder)
    base.set_experts_implementation("eager")
    model = peft.PeftModel.from_pretrained(
        base, os.path.join(source, "adapter_init"), is_trainable=True)
    expected = train(model, names_of(model), case, batches)
    write_yaml(source, to)
    case |= {"gradient_accumulation_steps": ACCUMULATION}
    case.pop("quantization", None)
    other_golden.write_case(source, to, case, "router", expected, {})
    print(to, expected["loss"].tolist())


if __name__ == "__main__":
    main(*(arg.rstrip("/") for arg in sys.argv[1:3]))
