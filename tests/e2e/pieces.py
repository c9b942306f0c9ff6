#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Sharded training only changes where values are stored.

    pieces.py --tools build/bin [NAME ...]

  layouts   full fine-tuning on four ranks gives the same losses, norms, models
            and states as an unsharded run: with fsdp, with zero2, with both,
            with fsdp and cp, and without overlapping gathers
  adapters  the same holds for sharded adapters with any initialization
  memory    a rank plans its fraction of the 16 bytes per parameter, and holds
            what was planned; rank 0 also holds the model that it writes
  resumed   a run resumes from a checkpoint of any other layout, and from its
            own to the same bytes
  refused   tensors that cannot be sharded are refused by name
"""

import argparse
import os
import re
import sys
import tempfile

import numpy as np

import safetensors_io
import shards
from shards import LENGTH, RANKS, call, same

FINAL = 1e-3  # of the distance that training moves values
# 0.26 and 19 million parameters. No number of ranks divides the vocabulary of
# SMALL.
SMALL = dict(hidden_size=96, intermediate_size=200, vocab_size=1001,
             num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
LARGE = dict(hidden_size=512, intermediate_size=1024, vocab_size=16001,
             num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8)
MESHES = ("fsdp=2", "fsdp=4", "zero2=2", "zero2=4", "fsdp=2,zero2=2")


class Runs(shards.Runs):
    flags = ("--save-steps", "2", "--lr-scheduler-type", "constant",
             # A large epsilon. With a small one, AdamW makes full steps even
             # for gradients near zero, whose sign depends on rounding.
             "--adam-epsilon", "1e-3")

    def full(self, mesh, *flags):
        module = f"{self.work}/full {mesh}.so"
        return self.compiled(module, "--finetuning-type", "full", "--parallel",
                             mesh, *flags)

    def compiled(self, module, *flags):
        plan = f"{module}.json"
        call(f"{self.tools}/qloracc", "--target=cpu",
             f"{self.work}/m.mlir", "-o", module,
             "--compute-dtype", "float32", "--max-length", LENGTH,
             "--per-device-train-batch-size", 1, "--plan-report", plan, *flags)
        return module, shards.json.loads(shards.promises.read(plan))

    def tensors(self, out, file):
        return safetensors_io.load(f"{self.work}/{out}/{file}.safetensors")


def near(found, wanted, start=None):
    """Compares all tensors, relative to the distance of `wanted` from `start`,
    or from 0."""
    assert list(found) == list(wanted), (list(found)[:3], list(wanted)[:3])
    for name, want in wanted.items():
        gone = want - start[name] if start else want
        worst = np.linalg.norm(found[name] - want)
        assert worst <= FINAL * np.linalg.norm(gone) + 1e-12, (name, worst)


def agree(runs, found, wanted):
    same(runs.losses(found), runs.losses(wanted))
    start = safetensors_io.load(f"{runs.model}/model.safetensors")
    for file, begun in (("model", start), ("state", None)):
        near(*(runs.tensors(out, f"checkpoint-4/{file}")
               for out in (found, wanted)), begun)


def layouts(runs):
    module, _ = runs.full("none")
    runs.train(module, RANKS, "none", *runs.flags)
    for mesh in MESHES:
        module, _ = runs.full(mesh)
        runs.train(module, RANKS, mesh, *runs.flags)
        agree(runs, mesh, "none")
        losses = runs.losses(mesh)["loss"]
        print(f"  {mesh}: losses {losses[0]:.4f} to {losses[-1]:.4f}")
    # With cp=2, pairs of ranks have the same rows. So the same step needs twice
    # as many micro-batches.
    module, _ = runs.full("cp=2,fsdp=4")
    runs.train(module, RANKS, "lines", *runs.flags,
               "--gradient-accumulation-steps", "4")
    agree(runs, "lines", "none")
    module, _ = runs.full("fsdp=4", "--disable-pass", "schedule-gathers")
    runs.train(module, RANKS, "in order", *runs.flags)
    agree(runs, "in order", "fsdp=4")


def adapters(runs):
    for name, flags in (
            ("plain", ()), ("dora", ("--use-dora",)),
            ("pissa", ("--init-lora-weights", "pissa")),
            ("tokens", ("--trainable-token-indices", "5,9,2")),
            ("saved", ("--modules-to-save", "up_proj", "--lora-target-modules",
                       "q_proj"))):
        for mesh in ("none", "zero2=2", "fsdp=2"):
            module, _ = runs.compiled(
                f"{runs.work}/{name} {mesh}.so", "--lora-r", 3,
                "--lora-dropout", 0, "--parallel", mesh, *flags)
            out = f"{name} {mesh}"
            runs.train(module, RANKS, out, *runs.flags)
            if mesh != "none":
                same(runs.losses(out), runs.losses(f"{name} none"))
                near(runs.tensors(out, "adapter_model"),
                     runs.tensors(f"{name} none", "adapter_model"))
        print(f"  adapters: {name}")


def process_peak(text):
    """Returns the MiB that a process had planned, and its peak MiB."""
    found = re.search(r"peak of the process +([0-9.]+) MiB +([0-9.]+) MiB",
                      text)
    return float(found[1]), float(found[2])


def memory(runs):
    """Trains the model LARGE, whose parameters take most of a process's
    memory."""
    shards.MODEL.update(LARGE)
    work = os.path.join(runs.work, "large")
    os.makedirs(work)
    runs = Runs(runs.tools, work)
    shards.MODEL.update(SMALL)
    _, plan = runs.full("none")
    for mesh, ranks in (("fsdp=4", 4), ("zero2=2", 2)):
        module, parts = runs.full(mesh)
        for arena in ("trainable", "gradient", "state"):
            all_of_it = plan["arenas"][arena]
            assert parts["arenas"][arena] < all_of_it / ranks + (64 << 10), (
                mesh, arena, parts["arenas"][arena], all_of_it)
        _, text = runs.train(module, ranks, "held", "--save-strategy", "no")
        planned, held = process_peak(text)
        # Rank 0 also holds the unsharded model that it writes, which it
        # collects in windows.
        image = plan["arenas"]["trainable"]
        assert held < planned + (image + 2 * shards.SLACK) / 2**20, (
            held, planned)
        assert planned < plan["total_bytes"] / 2**20, (planned, plan)
        print(f"  {mesh}: planned {planned:.0f} MiB, held {held:.0f}, without "
              f"{plan['total_bytes'] / 2**20:.0f}")


def resumed(runs):
    for name in ("none", "fsdp=2", "zero2=4", "zero1=2"):
        runs.full(name)
        runs.train(f"{runs.work}/full {name}.so", RANKS, name, *runs.flags)
    for start, then in (("fsdp=2", "fsdp=2"), ("zero2=4", "zero2=4"),
                        ("fsdp=2", "zero2=4"), ("zero2=4", "none"),
                        ("none", "fsdp=2"), ("zero1=2", "fsdp=2"),
                        ("fsdp=2", "zero1=2")):
        out = f"{then} from {start}"
        runs.go_on(f"{runs.work}/full {then}.so", RANKS, out, *runs.flags,
                   "--resume-from-checkpoint",
                   f"{runs.work}/{start}/checkpoint-2")
        mine, straight = (runs.tensors(each, "checkpoint-4/model")
                          for each in (out, then))
        if start == then:
            assert all((mine[name] == straight[name]).all() for name
                       in straight)
        agree(runs, out, "none")
        print(f"  {out}")


def refused(runs):
    for flags, words in (
            (("fsdp=2", "--optim", "muon"), "'muon' cannot update shards"),
            (("zero2=2", "--optim", "schedule_free_adamw",
              "--lr-scheduler-type", "constant"),
             "'schedule_free' cannot update shards"),
            (("fsdp=2,zero1=2",), "remove zero1"),
            (("zero1=2,zero2=2",), "remove zero1")):
        text = call(f"{runs.tools}/qloracc", "--target=cpu",
                    f"{runs.work}/m.mlir", "-o",
                    f"{runs.work}/no.so", "--finetuning-type", "full",
                    "--max-length", LENGTH, "--parallel", *flags, code=1)
        assert words in text, text
    module, _ = runs.full("zero2=4")
    text = call(f"{runs.tools}/qlora-run", module, "--gpus", 2,
                "--model-name-or-path", runs.model, "--train-file", runs.data,
                "--output-dir", f"{runs.work}/nothing", code=1)
    assert re.search(r"shards its trainable parameters over 4 ranks, but 2 "
                     r"were started; start a multiple of 4, "
                     r".*--parallel zero2=N", text), text
    text = call(f"{runs.tools}/qlora-run", module, "--gpus", 4,
                "--reproducible-reductions", "true", "--model-name-or-path",
                runs.model, "--train-file", runs.data, "--output-dir",
                f"{runs.work}/nothing", code=1)
    assert "--reproducible-reductions needs ranks that each" in text, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    tests = {test.__name__: test for test in
             (layouts, adapters, memory, resumed, refused)}
    shards.MODEL.update(SMALL)
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(os.path.abspath(options.tools), work)
        for name in options.names or tests:
            tests[name](runs)
            print(f"ok   pieces: {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
