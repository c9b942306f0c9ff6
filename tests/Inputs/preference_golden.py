#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a golden case of preferences, as TRL's trainers compute it, for the
model of another case.

    preference_golden.py KIND FROM TO [BATCHES]

KIND is dpo, kto, apo, orpo, cpo, another loss of DPOTrainer (PAIRS), or cpo-
with another loss of CPOTrainer (CPO).

The loss of every micro-batch is the result of `compute_loss` of `DPOTrainer` or
`KTOTrainer`, or of `get_batch_loss_metrics` of `ORPOTrainer` or `CPOTrainer`.
Cases whose kind is not among WHOLE have only losses, gradients and what is
logged. Optimizer and schedule
are torch's and transformers'. The trainer makes a new adapter from
`peft_config`, whose values are then replaced by those of FROM's adapter. So the
reference model is the base without an adapter. If FROM is quantized, the base
has the decoded values of its nf4.safetensors.

The rows of a micro-batch are:

    pairs       chosen sequences, then rejected sequences
    kto         prompts with their answers; then the same prompts, each with the
                answer of the row before (`KL_completion_ids` of `KTOTrainer`)
    apo         prompts with their answers; the loss is apo_zero_unpaired

BATCHES is the folder of another case with preferences, whose batches are used.
Needs torch, transformers, peft, trl and datasets; their versions are in
case.json.
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
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

STEPS, ACCUMULATION, LENGTH, VOCABULARY = 5, 2, 24, 256
WEIGHTS = {"desirable_weight": 1.25, "undesirable_weight": 0.75}
ANSWERS = {"kto": WEIGHTS,
           "apo": {**WEIGHTS, "loss_type": "apo_zero_unpaired"}}
PAIRS = {"dpo": {}} | {loss: {"loss_type": loss} for loss in (
    "hinge", "ipo", "nca_pair", "bco_pair", "apo_zero", "apo_down",
    "sigmoid_norm")} | {
    # Small enough that the square of log-ratios is compared in float32.
    "sppo_hard": {"loss_type": ["sppo_hard"], "loss_weights": [0.1]},
    "robust": {"loss_type": "robust", "label_smoothing": 0.2},
    "exo_pair": {"loss_type": "exo_pair", "label_smoothing": 0.1},
    "discopop": {"loss_type": "discopop", "discopop_tau": 0.5},
    "sft": {"loss_type": ["sigmoid", "bco_pair", "sft"],
            "loss_weights": [0.8, 0.2, 1.0]}}
CPO = {"cpo": {"label_smoothing": 0.1, "cpo_alpha": 0.7},
       "cpo-hinge": {"loss_type": "hinge"},
       "cpo-ipo": {"loss_type": "ipo"},
       "cpo-simpo": {"loss_type": "simpo", "simpo_gamma": 0.3,
                     "cpo_alpha": 0.0}}
SETTINGS = ANSWERS | PAIRS | CPO
WHOLE = ("dpo", "hinge", "ipo", "kto", "apo", "orpo")
# Pairs or answers in a micro-batch.
ROWS = dict.fromkeys(SETTINGS, 2) | {"kto": 3, "apo": 6, "orpo": 2}
# With the value of hinge, some pairs have no loss. The larger values of the
# others make a difference to the sigmoid.
BETA = dict.fromkeys(SETTINGS, 0.3) | {"hinge": 2.0, "orpo": 0.5,
                                       "discopop": 1.0, "cpo-hinge": 0.1,
                                       "cpo-simpo": 2.0}
# Losses that multiply errors of log-probabilities.
STEEP = ("hinge", "exo_pair", "sppo_hard", "discopop")
RATE = 0.002
# Large enough that gradients of rounding errors make no full steps.
EPSILON = 1e-6
NAMES = ("model_name_or_path", "adapter_name_or_path")


def make_answers(path):
    """Draws answers, desirable or not, of any length with their prompts. Tokens
    after an answer are not in the loss. With this seed the first step has a KL
    estimate above 0 and both kinds of answers; the last has one kind."""
    generator = torch.Generator().manual_seed(3)
    count, rows = STEPS * ACCUMULATION, ROWS["kto"]

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    ids = draw(0, VOCABULARY, count, 2 * rows, LENGTH)
    labels = torch.full_like(ids, -100)
    desirable = draw(0, 2, count, rows).repeat(1, 2)
    desirable[-ACCUMULATION:] = 1
    for batch in range(count):
        prompts, answers = ([draw(0, VOCABULARY, int(draw(3, 12)))
                             for _ in range(rows)] for _ in range(2))
        moved = [answers[-1]] + answers[:-1]
        for line, (prompt, answer) in enumerate(zip(2 * prompts,
                                                    answers + moved)):
            whole = slice(0, len(prompt) + len(answer))
            ids[batch, line, whole] = torch.cat((prompt, answer))
            labels[batch, line, len(prompt):whole.stop] = answer
    save_file({"input_ids": ids.int(), "labels": labels.int(),
               "desirable": desirable.int()}, path)


def make_batches(path):
    """Draws prompts whose lengths differ between pairs; rejected answers end
    earlier."""
    generator = torch.Generator().manual_seed(11)
    shape = (STEPS * ACCUMULATION, ROWS["dpo"], LENGTH)
    chosen, rejected = (torch.randint(0, VOCABULARY, shape, generator=generator)
                        for _ in range(2))
    learned = chosen.clone(), rejected.clone()
    for batch in range(shape[0]):
        for pair in range(shape[1]):
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
    """TRL requires one; no text is tokenised."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(
            tokenizers.models.WordLevel(words, "w0")))
    made.pad_token = made.eos_token = made.bos_token = "w0"
    return made


def make_trainer(kind, model, config, folder):
    row = {"prompt": "w1 w2"} | (
        {"completion": "w3", "label": True} if kind in ANSWERS else
        {"chosen": "w3", "rejected": "w4"})
    common = {"output_dir": folder, "beta": BETA[kind], "report_to": [],
              "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
              "max_length": LENGTH, "remove_unused_columns": False}
    common |= SETTINGS.get(kind, {})
    make, settings = ((trl.DPOTrainer, trl.DPOConfig) if kind in PAIRS else
                      (trl.KTOTrainer, trl.KTOConfig) if kind in ANSWERS else
                      (CPOTrainer, CPOConfig) if kind in CPO else
                      (ORPOTrainer, ORPOConfig))
    return make(model=model, args=settings(**common), peft_config=config,
                train_dataset=datasets.Dataset.from_list([row] * 4),
                processing_class=tokenizer())


def loss_of_answers(kind, trainer, ids, labels, desirable):
    inputs = {"label": desirable[:ROWS[kind]].bool()}
    for prefix, lines in (("", slice(None, ROWS[kind])),
                          ("KL_", slice(ROWS[kind], None))):
        inputs |= {f"{prefix}input_ids": ids[lines],
                   f"{prefix}attention_mask": torch.ones_like(ids[lines]),
                   f"{prefix}completion_mask": (labels[lines] != -100).long()}
    return trainer.compute_loss(trainer.model, inputs)


def loss_of(kind, trainer, ids, labels, desirable=None):
    """Returns the loss and, for orpo and cpo, the values that the trainer
    logs."""
    if kind in ANSWERS:
        return loss_of_answers(kind, trainer, ids, labels, desirable), {}
    everything = torch.ones_like(ids)
    if kind in PAIRS:
        return trainer.compute_loss(trainer.model, {
            "input_ids": ids, "attention_mask": everything,
            "completion_mask": (labels != -100).long()}), {}
    sides = {}
    for side, rows in (("chosen", slice(None, ROWS[kind])),
                       ("rejected", slice(ROWS[kind], None))):
        sides |= {f"{side}_input_ids": ids[rows],
                  f"{side}_labels": labels[rows],
                  f"{side}_attention_mask": everything[rows]}
    sides["prompt_input_ids"] = ids[:ROWS[kind]]
    return trainer.get_batch_loss_metrics(trainer.model, sides)


class Logged:
    """Collects the values that ORPOTrainer, CPOTrainer and KTOTrainer log.
    expected()
    returns their means over the pairs or answers of each step."""

    def __init__(self):
        self.steps = {}

    def take_pairs(self, step, said):
        for name, value in said.items():
            if not name.startswith("logits/"):
                sums = self.steps.setdefault(name, torch.zeros(STEPS, 2))
                sums[step] += torch.tensor([value, 1.0])

    def take_answers(self, trainer, step, desirable):
        said, rows = trainer._metrics["train"], len(desirable)
        chosen = int(desirable.sum())
        for name, count in (("kl", rows), *(
                (f"{value}/{side}", of)
                for side, of in (("chosen", chosen),
                                 ("rejected", rows - chosen))
                for value in ("rewards", "logps"))):
            sums = self.steps.setdefault(name, torch.zeros(STEPS, 2))
            if count:
                sums[step] += torch.tensor([said[name][-1] * count, count])

    def expected(self):
        return {"logged." + name: sums[:, 0] / sums[:, 1]
                for name, sums in self.steps.items()}


def train(kind, trainer, named, batches):
    model, expected = trainer.model, {}
    optimizer = torch.optim.AdamW(named.values(), lr=RATE, eps=EPSILON,
                                  weight_decay=0.0)
    losses, norms, logged = [], [], Logged()
    for step in range(STEPS):
        total = 0.0
        for i in range(step * ACCUMULATION, (step + 1) * ACCUMULATION):
            inputs = [batches[name][i].long() for name in
                      ("input_ids", "labels", "desirable") if name in batches]
            if i == 0:
                with torch.no_grad():
                    expected["logits"] = model(
                        input_ids=inputs[0]).logits.clone()
            loss, said = loss_of(kind, trainer, *inputs)
            loss = loss / ACCUMULATION
            loss.backward()
            if not SETTINGS.get(kind, {}).get("cpo_alpha", 1):
                said.pop("nll_loss")  # CPOTrainer logs 0, not this loss
            logged.take_pairs(step, said)
            if kind in ANSWERS:
                logged.take_answers(trainer, step, inputs[2][:ROWS[kind]])
            total += loss.item()
        if step == 0:
            expected |= {"grad." + name: p.grad.clone()
                         for name, p in named.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(named.values(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    if kind in WHOLE:
        expected |= {"final." + name: p.detach() for name, p in named.items()}
    else:
        del expected["logits"]
    expected |= {"loss": torch.tensor(losses), "grad_norm": torch.tensor(norms),
                 "learning_rate": torch.full((STEPS,), RATE),
                 **logged.expected()}
    return {name: value.contiguous() for name, value in expected.items()}


def write_yaml(kind, source, to, batches):
    with open(os.path.join(source, "train.yaml")) as file:
        values = {name: json.loads(value) for name, value in
                  (line.split(":", 1) for line in file)}
    for name in NAMES:
        values[name] = os.path.relpath(os.path.join(source, values[name]), to)
    values |= {"train_file": os.path.relpath(batches, to),
               "rl": ("kto" if kind in ANSWERS else
                      "dpo" if kind in PAIRS else
                      "cpo" if kind in CPO else kind),
               "beta": BETA[kind], "per_device_train_batch_size": ROWS[kind],
               "max_length": LENGTH, "max_steps": STEPS, "warmup_steps": 0,
               "gradient_accumulation_steps": ACCUMULATION,
               "adam_epsilon": EPSILON, "learning_rate": RATE,
               "lr_scheduler_type": "constant",
               "weight_decay": 0.0, "max_grad_norm": 1.0,
               **SETTINGS.get(kind, {})}
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n"
                        for name, value in values.items())


def load_model(source):
    """Returns the base that the case trains, in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(source, "model"), dtype=torch.float32,
        attn_implementation="eager")
    numbers = os.path.join(source, "nf4.safetensors")
    if os.path.exists(numbers):
        for name, value in load_file(numbers).items():
            if name.endswith(".dequantized"):
                model.get_parameter(
                    name.removesuffix(".dequantized")).data.copy_(value)
    return model


def load_config(start):
    config = peft.PeftConfig.from_pretrained(start)
    config.inference_mode = False
    return config


def load_start(model, start):
    """Gives the adapter its first values. Returns the trainable parameters by
    the names that PEFT saves."""
    peft.set_peft_model_state_dict(model, load_file(
        os.path.join(start, "adapter_model.safetensors")))
    saved = {t.data_ptr(): name for name, t in peft.get_peft_model_state_dict(
        model, save_embedding_layers=False).items()}
    model.train()
    return {saved[p.data_ptr()]: p for p in model.parameters()
            if p.requires_grad}


def main(kind, source, to, shared=None):
    os.makedirs(to, exist_ok=True)
    batches = os.path.join(shared or to, "batches.safetensors")
    if not shared:
        (make_answers if kind in ANSWERS else make_batches)(batches)
    start = os.path.join(source, "adapter_init")
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(kind, load_model(source), load_config(start),
                               folder)
    named = load_start(trainer.model, start)
    save_file(train(kind, trainer, named, load_file(batches)),
              os.path.join(to, "expected.safetensors"))
    write_yaml(kind, source, to, batches)
    described = {"kind": kind, "from": os.path.basename(source),
                 "gradient_accumulation_steps": ACCUMULATION, "steps": STEPS,
                 "reference": {module.__name__: module.__version__.split("+")[0]
                               for module in (torch, transformers, peft, trl)}}
    if kind == "kto":
        described["only_ranks"] = 1
    if kind in STEEP:
        described["only_float32"] = True
    with open(os.path.join(to, "case.json"), "w") as file:
        json.dump(described, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main(*(arg.rstrip("/") for arg in sys.argv[1:]))
