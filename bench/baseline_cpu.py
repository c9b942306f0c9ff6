#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The baseline on a CPU: transformers + PEFT + bitsandbytes.

    baseline_cpu.py --model DIR --data FILE [--adapter DIR] [--compute bf16|f32]
                [--mode nf4|bf16|f32] [--checkpointing] [--batch-rows 8]
                [--steps 6]

Trains LoRA (r = 16, all linears, AdamW at a constant rate) with the weights,
data and initial adapter of qlora-run. Experts are decoded once, not in every
step as by bitsandbytes, and use the fastest of transformers' expert
implementations. A token file has one micro-batch per step. A rows file has
--batch-rows rows per step, in file order, padded to the longest row, as by the
usual collator.

Prints a line of JSON once everything is loaded (for a model with experts, also
a step's seconds in each implementation). For each line `steps N` on standard
input, runs N steps and prints another line: for each step the loss, seconds,
tokens without padding and labelled tokens, and the peak of resident bytes since
the model was loaded. --steps N runs N steps, once. For `evaluate`, prints
only the loss of the next rows.
"""

import argparse
import ctypes
import gc
import json
import os
import resource
import sys
import time

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
# transformers' implementations of expert layers (experts_implementation).
EXPERT_WAYS = ("eager", "grouped_mm", "batched_mm")


def say(**values):
    print(json.dumps(values), flush=True)


def free_bytes():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines
                    if line.startswith("MemAvailable"))


def stay_in_memory():
    """Limits the process's memory, so that an excessive allocation fails
    instead of exhausting the machine."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(0.95 * free_bytes()),) * 2)


def quantize(model, compute):
    """Quantizes all linears except the head."""
    import bitsandbytes as bnb
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or "lm_head" in name:
            continue
        linear = bnb.nn.Linear4bit(
            module.in_features, module.out_features,
            bias=module.bias is not None, compute_dtype=compute,
            compress_statistics=True, quant_type="nf4")
        linear.weight = bnb.nn.Params4bit(
            module.weight.data.float(), requires_grad=False,
            quant_type="nf4", compress_statistics=True)
        if module.bias is not None:
            linear.bias = module.bias
        parent, child = name.rsplit(".", 1)
        setattr(model.get_submodule(parent), child, linear.to("cpu"))


def decode_experts(model):
    """Rounds expert weights to NF4 and back, keeping their type."""
    from bitsandbytes import functional as F
    for name, weight in model.named_parameters():
        if ".experts." in name:
            packed, state = F.quantize_4bit(
                weight.data.float().contiguous(), quant_type="nf4",
                compress_statistics=True)
            weight.data = F.dequantize_4bit(packed, state).to(weight.dtype)


def copied_bytes(config, tokens, width):
    """Returns the bytes that batched_mm keeps for the backward pass: for each
    token, copies of the weights of its experts."""
    return (tokens * config.num_experts_per_tok * config.num_hidden_layers
            * 3 * config.hidden_size * config.moe_intermediate_size * width)


def load(options):
    """Returns the model with its adapter, and the dtype of the base weights."""
    compute = DTYPES[options.compute]
    weights = compute if options.mode == "nf4" else DTYPES[options.mode]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=weights)
    if options.mode == "nf4":
        quantize(model, compute)
        decode_experts(model)
    if options.adapter:
        model = PeftModel.from_pretrained(model, options.adapter,
                                          is_trainable=True)
    else:
        model = get_peft_model(model, LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear",
            task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    if options.checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    model.config.use_cache = False
    return model, weights


def pad(rows):
    """Returns ids, attention mask and labels of a batch."""
    width = max(len(ids) for ids, _ in rows)
    shape = (len(rows), width)
    ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(
        shape, dtype=torch.long)
    labels = torch.full(shape, -100)
    for i, (row, targets) in enumerate(rows):
        ids[i, :len(row)], mask[i, :len(row)] = row.long(), 1
        labels[i, :len(row)] = targets.long()
    return ids, mask, labels


def batches(options):
    """Yields the batches of the file in an endless cycle."""
    file = load_file(options.data)
    if "row_offsets" not in file:
        while True:
            for ids, labels in zip(file["input_ids"], file["labels"]):
                yield ids.long(), None, labels.long()
    ends = file["row_offsets"][1:-1]
    rows = list(zip(torch.tensor_split(file["input_ids"], ends),
                    torch.tensor_split(file["labels"], ends)))
    while True:
        for first in range(0, len(rows), options.batch_rows):
            yield pad(rows[first:first + options.batch_rows])


def peak_bytes():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines
                    if line.startswith("VmHWM"))


def forget_peak():
    """Resets the peak of resident memory, to exclude building the model."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


class Trainer:
    def __init__(self, options):
        self.model, weights = load(options)
        self.has_autocast = weights != torch.float32
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad], lr=1e-4,
            weight_decay=0)
        self.data = batches(options)
        self.expert_seconds = {}
        if hasattr(self.model.config, "num_experts"):
            self.choose_way(next(batches(options)))

    def choose_way(self, batch):
        """Chooses the fastest expert implementation without updating weights.
        Times the implementations in turns, because load varies."""
        needed = copied_bytes(self.model.config, batch[0].numel(),
                              2 if self.has_autocast else 4)
        ways = [way for way in EXPERT_WAYS
                if way != "batched_mm" or needed < 0.8 * free_bytes()]
        for way in 3 * ways:
            self.model.get_base_model().set_experts_implementation(way)
            seconds = self.seconds_of_gradients(batch)
            self.expert_seconds[way] = min(
                seconds, self.expert_seconds.get(way, seconds))
        self.model.get_base_model().set_experts_implementation(
            min(self.expert_seconds, key=self.expert_seconds.get))

    def seconds_of_gradients(self, batch):
        start = time.perf_counter()
        self.add_gradients(*batch)
        seconds = time.perf_counter() - start
        self.optimizer.zero_grad()
        return seconds

    def add_gradients(self, ids, mask, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.has_autocast):
            loss = self.model(input_ids=ids, attention_mask=mask,
                              labels=labels).loss
        loss.backward()
        return loss

    def step(self, result):
        ids, mask, labels = next(self.data)
        start = time.perf_counter()
        loss = self.add_gradients(ids, mask, labels)
        self.optimizer.step()
        self.optimizer.zero_grad()
        result["seconds"].append(time.perf_counter() - start)
        result["losses"].append(loss.item())
        result["tokens"].append(int(mask.sum()) if mask is not None
                                else ids.numel())
        # A row's first token is never a target.
        result["labelled"].append(int((labels[:, 1:] != -100).sum()))

    def steps(self, count):
        result = {"seconds": [], "losses": [], "tokens": [], "labelled": []}
        for _ in range(count):
            self.step(result)
        say(**result, peak=peak_bytes())

    def evaluate(self):
        """Prints the loss of the next batch. Computes it row by row and without
        gradients, which needs less memory than a step."""
        ids, mask, labels = next(self.data)
        loss, labelled = 0.0, 0
        for row, width in enumerate(mask.sum(dim=1).tolist()):
            part = slice(row, row + 1), slice(width)
            count = int((labels[part][:, 1:] != -100).sum())
            with torch.no_grad():
                loss += count * self.model(input_ids=ids[part],
                                           labels=labels[part]).loss.item()
            labelled += count
        say(losses=[loss / labelled])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--adapter", default="")
    parser.add_argument("--mode", choices=["nf4", "bf16", "f32"],
                        default="nf4")
    parser.add_argument("--compute", choices=DTYPES, default="bf16")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--batch-rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    stay_in_memory()
    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        trainer = Trainer(options)
        forget_peak()
        say(ready=True, expert_seconds=trainer.expert_seconds)
        if options.steps:
            return trainer.steps(options.steps)
        for line in sys.stdin:
            if line.startswith("evaluate"):
                trainer.evaluate()
            else:
                trainer.steps(int(line.split()[1]))
    except (MemoryError, RuntimeError) as error:
        say(error=str(error).splitlines()[0])


if __name__ == "__main__":
    main()
