#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a golden case of preferences, as TRL's trainers compute it, on the model
of another case.

    preference_golden.py dpo|orpo FROM TO [BATCHES]

The loss of every micro-batch is what `DPOTrainer.compute_loss` gives, or
`ORPOTrainer.get_batch_loss_metrics`; optimizer and schedule are torch's and
transformers'. The adapter comes from FROM's folder, and is put into a new one of
the trainer's, so that the reference is the base without any, as with TRL's
`peft_config`. Where FROM is quantised, the base has the numbers that its
nf4.safetensors stands for. A micro-batch has the chosen rows before the rejected
ones. BATCHES is another such case, whose tokens are used. Needs torch,
transformers, peft, trl and datasets; what they were is in case.json.
"""

import json
import os
import sys
import tempfile

import datasets
import peft
import tokenizers
import torch
import transformers
import trl
from safetensors.torch import load_file, save_file
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

STEPS, ACCUMULATION, PAIRS, LENGTH, VOCABULARY = 5, 2, 2, 24, 256
BETA, RATE = {"dpo": 0.3, "orpo": 0.5}, 0.002
# What has hardly any gradient but rounding makes no whole steps with it.
EPSILON = 1e-6
NAMES = ("model_name_or_path", "adapter_name_or_path")


def make_batches(path):
    """Prompts of other lengths from pair to pair; rejected answers end earlier."""
    generator = torch.Generator().manual_seed(11)
    shape = (STEPS * ACCUMULATION, PAIRS, LENGTH)
    chosen, rejected = (torch.randint(0, VOCABULARY, shape, generator=generator)
                        for _ in range(2))
    learned = chosen.clone(), rejected.clone()
    for batch in range(shape[0]):
        for pair in range(PAIRS):
            prompt, cut = (int(torch.randint(low, high, (1,),
                                             generator=generator))
                           for low, high in ((3, 12), (1, 6)))
            rejected[batch, pair, :prompt] = chosen[batch, pair, :prompt]
            for labels in learned:
                labels[batch, pair, :prompt] = -100
            learned[1][batch, pair, prompt:] = rejected[batch, pair, prompt:]
            learned[1][batch, pair, -cut:] = -100
    save_file({"input_ids": torch.cat((chosen, rejected), 1).int(),
               "labels": torch.cat(learned, 1).int()}, path)


def tokenizer():
    """TRL asks for one; no text is tokenised."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(
            tokenizers.models.WordLevel(words, "w0")))
    made.pad_token = made.eos_token = made.bos_token = "w0"
    return made


def make_trainer(kind, model, config, folder):
    row = {"prompt": "w1 w2", "chosen": "w3", "rejected": "w4"}
    common = {"output_dir": folder, "beta": BETA[kind], "report_to": [],
              "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
              "max_length": LENGTH, "remove_unused_columns": False}
    make, settings = ((trl.DPOTrainer, trl.DPOConfig) if kind == "dpo" else
                      (ORPOTrainer, ORPOConfig))
    return make(model=model, args=settings(**common), peft_config=config,
                train_dataset=datasets.Dataset.from_list([row] * 4),
                processing_class=tokenizer())


def loss_of(kind, trainer, ids, labels):
    everything = torch.ones_like(ids)
    if kind == "dpo":
        return trainer.compute_loss(trainer.model, {
            "input_ids": ids, "attention_mask": everything,
            "completion_mask": (labels != -100).long()})
    sides = {}
    for side, rows in (("chosen", slice(None, PAIRS)),
                       ("rejected", slice(PAIRS, None))):
        sides |= {f"{side}_input_ids": ids[rows], f"{side}_labels": labels[rows],
                  f"{side}_attention_mask": everything[rows]}
    sides["prompt_input_ids"] = ids[:PAIRS]
    return trainer.get_batch_loss_metrics(trainer.model, sides)[0]


def train(kind, trainer, named, batches):
    model, expected = trainer.model, {}
    optimizer = torch.optim.AdamW(named.values(), lr=RATE, eps=EPSILON,
                                  weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS):
        total = 0.0
        for i in range(step * ACCUMULATION, (step + 1) * ACCUMULATION):
            ids, labels = (batches[name][i].long()
                           for name in ("input_ids", "labels"))
            if i == 0:
                with torch.no_grad():
                    expected["logits"] = model(input_ids=ids).logits.clone()
            loss = loss_of(kind, trainer, ids, labels) / ACCUMULATION
            loss.backward()
            total += loss.item()
        if step == 0:
            expected |= {"grad." + name: p.grad.clone()
                         for name, p in named.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(named.values(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    expected |= {"final." + name: p.detach() for name, p in named.items()}
    expected |= {"loss": torch.tensor(losses), "grad_norm": torch.tensor(norms),
                 "learning_rate": torch.full((STEPS,), RATE)}
    return {name: value.contiguous() for name, value in expected.items()}


def write_yaml(kind, source, to, batches):
    with open(os.path.join(source, "train.yaml")) as file:
        values = {name: json.loads(value) for name, value in
                  (line.split(":", 1) for line in file)}
    for name in NAMES:
        values[name] = os.path.relpath(os.path.join(source, values[name]), to)
    values |= {"train_file": os.path.relpath(batches, to), "rl": kind,
               "beta": BETA[kind], "per_device_train_batch_size": PAIRS,
               "max_length": LENGTH, "max_steps": STEPS, "warmup_steps": 0,
               "gradient_accumulation_steps": ACCUMULATION,
               "adam_epsilon": EPSILON, "learning_rate": RATE,
               "lr_scheduler_type": "constant",
               "weight_decay": 0.0, "max_grad_norm": 1.0}
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n"
                        for name, value in values.items())


def main(kind, source, to, shared=None):
    os.makedirs(to, exist_ok=True)
    batches = os.path.join(shared or to, "batches.safetensors")
    if not shared:
        make_batches(batches)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(source, "model"), dtype=torch.float32,
        attn_implementation="eager")
    numbers = os.path.join(source, "nf4.safetensors")
    if os.path.exists(numbers):
        for name, value in load_file(numbers).items():
            if name.endswith(".dequantized"):
                model.get_parameter(
                    name.removesuffix(".dequantized")).data.copy_(value)
    start = os.path.join(source, "adapter_init")
    with tempfile.TemporaryDirectory() as folder:
        config = peft.PeftConfig.from_pretrained(start)
        config.inference_mode = False
        trainer = make_trainer(kind, model, config, folder)
    peft.set_peft_model_state_dict(trainer.model, load_file(
        os.path.join(start, "adapter_model.safetensors")))
    saved = {t.data_ptr(): name for name, t in peft.get_peft_model_state_dict(
        trainer.model, save_embedding_layers=False).items()}
    named = {saved[p.data_ptr()]: p for p in trainer.model.parameters()
             if p.requires_grad}
    trainer.model.train()
    save_file(train(kind, trainer, named, load_file(batches)),
              os.path.join(to, "expected.safetensors"))
    write_yaml(kind, source, to, batches)
    described = {"kind": kind, "from": os.path.basename(source),
                 "gradient_accumulation_steps": ACCUMULATION, "steps": STEPS,
                 "reference": {module.__name__: module.__version__.split("+")[0]
                               for module in (torch, transformers, peft, trl)}}
    with open(os.path.join(to, "case.json"), "w") as file:
        json.dump(described, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main(*(arg.rstrip("/") for arg in sys.argv[1:]))
