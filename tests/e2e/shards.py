#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Sharding the base over ranks only changes where the base is stored.

    shards.py --tools build/bin

  layouts   four ranks train and evaluate to the losses of one rank: with an
            unsharded base, with fsdp=4, with fsdp=2, with fsdp=4 and unsharded
            embeddings, and with fsdp=4 and no overlapping gathers
  memory    a rank plans a quarter of the sharded weights, plus a layer and a
            weight for other ranks' shards; its peak is its plan plus the
            unplanned memory of a rank with the unsharded base
  saved     the rank that writes checkpoints of sharded full fine-tuning, and
            the model at the end, holds no more than was planned
  kept      a second start maps the shards of every rank and trains the same
  resumed   a run that was stopped resumes to the same bytes
  updates   sharded and unsharded updates give the same bytes, in checkpoints
            too, and resume each other's runs; with sharded updates, a rank
            holds only its shard of the states
  refused   a number of ranks that cannot hold the base, in one line
  killed    a rank that dies ends the others within seconds
"""

import argparse
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

import promises
import safetensors_io
from base_cache import SETTLED

sys.path.insert(0, os.path.join(promises.HERE, "..", "..", "bench"))
import tensors  # noqa: E402

# 29 million parameters: 8 million in the embedding, 2.6 million per layer.
MODEL = dict(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=8,
    num_attention_heads=8, num_key_value_heads=8, vocab_size=16001,
    tie_word_embeddings=True, rope_theta=1e4,
    architectures=["LlamaForCausalLM"], model_type="llama",
    hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=512,
    torch_dtype="bfloat16")
LENGTH, RANKS, SECONDS = 32, 4, 20
SLACK = 24 << 20


def call(*command, code=0):
    return promises.call(*map(str, command), code=code)


class Runs:
    def __init__(self, tools, work):
        self.tools, self.work = tools, work
        self.model = os.path.join(work, "model")
        self.data = os.path.join(work, "data.safetensors")
        os.makedirs(self.model)
        tensors.write_random_model(self.model, MODEL, 300)
        tensors.write_tokens(self.data, MODEL["vocab_size"], 64, 1, LENGTH)
        call(f"{tools}/qlora-import", self.model, "-o", f"{work}/m.mlir")
        time.sleep(SETTLED)  # the file is old enough for the base cache

    def compile(self, name, *flags):
        module, plan = f"{self.work}/{name}.so", f"{self.work}/{name}.json"
        call(f"{self.tools}/qloracc", "--target=cpu",
             f"{self.work}/m.mlir", "-o", module,
             "--load-in-4bit", "--compute-dtype", "float32", "--max-length",
             LENGTH, "--per-device-train-batch-size", 1, "--lora-r", 4,
             "--plan-report", plan, *flags)
        with open(plan) as file:
            return module, json.load(file)

    def command(self, module, ranks, out, *flags):
        return [f"{self.tools}/qlora-run", module, "--gpus", str(ranks),
                "--threads", "1", "--model-name-or-path", self.model,
                "--train-file", self.data, "--max-steps", "4",
                "--gradient-accumulation-steps", str(2 * RANKS // ranks),
                "--logging-steps", "1", "--learning-rate", "1e-3",
                "--base-cache", f"{self.work}/bases", "--output-dir",
                f"{self.work}/{out}", "--overwrite-output-dir", "--verbose",
                *flags]

    def train(self, module, ranks, out, *flags):
        text = call(*self.command(module, ranks, out, *flags))
        return self.losses(out), text

    def go_on(self, *run):
        call(*[word for word in self.command(*run)
               if word != "--overwrite-output-dir"])

    def losses(self, out):
        with open(f"{self.work}/{out}/metrics.jsonl") as lines:
            rows = [json.loads(line) for line in lines]
        return {key: np.array([row[key] for row in rows if key in row])
                for key in ("loss", "grad_norm", "eval_loss")}

    def adapter(self, out):
        return promises.read(f"{self.work}/{out}/adapter_model.safetensors")


def same(found, wanted):
    for key, want in wanted.items():
        assert len(found[key]) == len(want), (key, found[key], want)
        if len(want):
            worst = np.abs(found[key] - want).max()
            assert worst < 2e-5 * max(1, np.abs(want).max()), (key, worst)


def layouts(runs):
    evaluates = ("--validation-file", runs.data)
    whole, _ = runs.compile("whole")
    want, _ = runs.train(whole, 1, "one", *evaluates)
    found = {"dp=4": runs.train(whole, 4, "dp", *evaluates)[0]}
    for shards, flags in ((4, ()), (2, ()),
                          (4, ("--shard-embeddings", "false")),
                          (4, ("--disable-pass", "schedule-gathers"))):
        name = " ".join((f"fsdp={shards}", *flags))
        module, _ = runs.compile(name, "--parallel", f"fsdp={shards}", *flags)
        found[name] = runs.train(module, 4, "layout", *evaluates)[0]
    for name, losses in found.items():
        same(losses, want)
        print(f"  {name}: losses {losses['loss'][0]:.4f} to "
              f"{losses['loss'][-1]:.4f}, norm "
              f"{losses['grad_norm'][0]:.6g}, worst difference "
              f"{np.abs(losses['loss'] - want['loss']).max():.2g}")


def peak(text):
    """Returns the peak bytes of a rank, and its planned bytes."""
    found = re.search(r"memory +([0-9.]+) MiB planned.*?, ([0-9.]+) MiB "
                      r"resident at most", text)
    return float(found[2]) * 2**20, float(found[1]) * 2**20


def memory(runs):
    whole, plan = runs.compile("whole")
    divided, parts = runs.compile("fsdp=4", "--parallel", "fsdp=4")
    base = plan["arenas"]["frozen"]
    assert parts["arenas"]["frozen"] < base / 4 + (64 << 10), (base, parts)
    last = max((entry for entry in parts["entries"] if "peak" in entry),
               key=lambda entry: entry["activation_bytes"])
    layer = 2.7e6 * 0.53  # bytes in NF4 with scales
    gathered = last["peak"].get("gathered", 0)
    assert 0 < gathered < 1.4 * layer, (gathered, layer)
    _, text = runs.train(whole, 1, "one")
    beside = np.subtract(*peak(text))
    _, text = runs.train(divided, 4, "four")
    held, planned = peak(text)
    assert held < planned + max(beside, 0) + SLACK, (held, planned, beside)
    print(f"  a rank: base {parts['arenas']['frozen']} of {base} bytes, "
          f"gathered {gathered}, resident {held / 2**20:.1f} MiB, planned "
          f"{planned / 2**20:.1f}")


def saved(runs):
    """Checks sharded full fine-tuning: parameters and states are 348 MB, and a
    rank has a quarter of them."""
    module, _ = runs.compile(
        "full", "--finetuning-type", "full", "--load-in-4bit", "false",
        "--parallel", "fsdp=4")
    _, text = runs.train(module, RANKS, "saved", "--save-steps", "2")
    planned, _ = peak(text)
    measured = re.search(r"peak of the process +([0-9.]+) MiB +([0-9.]+) MiB",
                         text)
    held = float(measured[2]) * 2**20
    # A reduce-scatter on CPU ranks copies a gradient. The embedding has the
    # largest gradient.
    copied = 4 * MODEL["vocab_size"] * MODEL["hidden_size"]
    assert held < planned + copied + SLACK, (held, planned, text)
    assert re.search(r"checkpoint buffer +10.0 MiB", text), text
    print(f"  rank 0 held {held / 2**20:.1f} MiB of {planned / 2**20:.1f} "
          "planned")


def kept(runs):
    module, _ = runs.compile("fsdp=4", "--parallel", "fsdp=4")
    bases = f"{runs.work}/bases"
    for file in glob.glob(f"{bases}/*"):
        os.remove(file)
    first, text = runs.train(module, 4, "first")
    assert "mapped from" not in text, text
    assert len(glob.glob(f"{bases}/*.base")) == 4, os.listdir(bases)
    again, text = runs.train(module, 4, "again")
    assert "mapped from" in text, text
    assert (first["loss"] == again["loss"]).all()
    assert runs.adapter("first") == runs.adapter("again")


def resumed(runs):
    module, _ = runs.compile("fsdp=2", "--parallel", "fsdp=2")
    runs.train(module, 4, "whole_run")
    half = ("--save-steps", "2")
    runs.train(module, 4, "parts", *half, "--max-steps", "2",
               "--lr-scheduler-type", "constant")
    runs.train(module, 4, "straight", *half, "--lr-scheduler-type", "constant")
    runs.go_on(module, 4, "parts", *half, "--lr-scheduler-type", "constant",
               "--resume-from-checkpoint", "latest")
    assert runs.adapter("parts") == runs.adapter("straight")


def updates(runs):
    """Trains with updates sharded over one group of ranks and over two, with an
    unsharded and a sharded base."""
    flags = ("--save-steps", "2", "--lr-scheduler-type", "constant",
             "--seed", "3")
    modules, states = {}, {}
    for name in ("none", "zero1=2", "zero1=4", "fsdp=2,zero1=2", "fsdp=2"):
        modules[name], plan = runs.compile(f"updates {name}", "--parallel",
                                           name)
        states[name] = plan["arenas"]["state"]
        runs.train(modules[name], 4, f"updates {name}", *flags)
    for name, ranks in (("zero1=2", 2), ("zero1=4", 4), ("fsdp=2,zero1=2", 2)):
        assert states[name] * ranks - states["none"] < ranks * 8192, states
        like = "fsdp=2" if name.startswith("fsdp") else "none"
        for file in ("adapter_model", "checkpoint-2/adapter_model",
                     "checkpoint-2/state"):
            mine, wanted = (safetensors_io.load(
                f"{runs.work}/updates {each}/{file}.safetensors")
                            for each in (name, like))
            assert list(mine) == list(wanted), (name, file)
            for key, want in wanted.items():
                assert (mine[key] == want).all(), (name, file, key)
    # Resume a run with two shards on four shards and without shards, and vice
    # versa.
    for other in ("zero1=4", "none"):
        for start, module in (("zero1=2", other), (other, "zero1=2")):
            begun = f"{runs.work}/updates {start}/checkpoint-2"
            out = f"{module} from {start}"
            runs.go_on(modules[module], 4, out, *flags,
                       "--resume-from-checkpoint", begun)
            assert runs.adapter(out) == runs.adapter("updates none"), out


def refused(runs):
    module, _ = runs.compile("fsdp=4", "--parallel", "fsdp=4")
    for flags in (("--gpus", "6"), ("--gpus", "2"), ("--gpus", "1"),
                  ("--gpus", "6", "--device", "null")):
        text = call(f"{runs.tools}/qlora-run", module, *flags,
                    "--model-name-or-path", runs.model, "--train-file",
                    runs.data, "--output-dir", f"{runs.work}/none", code=1)
        assert "over 4 ranks" in text and len(text.splitlines()) == 1, text
    text = call(f"{runs.tools}/qloracc", "--target=cpu",
                f"{runs.work}/m.mlir", "-o",
                f"{runs.work}/no.so", "--parallel", "ep=2", code=1)
    assert "the model has no experts" in text, text
    for flags, words in (
            (("--optim", "muon"), "cannot shard updates of 'muon'"),
            (("--optim", "schedule_free_adamw", "--lr-scheduler-type",
              "constant"), "cannot shard updates"),
            (("--parallel", "fsdp=2,zero1=4"), "give both the same number")):
        text = call(f"{runs.tools}/qloracc", "--target=cpu",
                    f"{runs.work}/m.mlir", "-o",
                    f"{runs.work}/no.so", "--parallel", "zero1=2", *flags,
                    code=1)
        assert words in text.splitlines()[-1], text


def ranks_of(parent):
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        return [int(number) for number in file.read().split()]


def killed(runs):
    module, _ = runs.compile("fsdp=2", "--parallel", "fsdp=2")
    started = subprocess.Popen(
        runs.command(module, 4, "killed", "--max-steps", "100000"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in started.stdout:
        if re.match(r" +1/100", line):
            break
    ranks = ranks_of(started.pid)
    assert len(ranks) == 4, ranks
    os.kill(ranks[3], signal.SIGKILL)
    begun = time.monotonic()
    text, _ = started.communicate(timeout=SECONDS)
    seconds = time.monotonic() - begun
    assert started.returncode == 128 + signal.SIGKILL, started.returncode
    assert re.search(r"rank 3.*(killed|SIGKILL|signal 9)", text, re.I), text
    left = [rank for rank in ranks if os.path.exists(f"/proc/{rank}")]
    assert not left, left
    print(f"  ended in {seconds:.2f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    tests = {test.__name__: test for test in
             (layouts, memory, saved, kept, resumed, updates, refused, killed)}
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(os.path.abspath(options.tools), work)
        for name in options.names or tests:
            tests[name](runs)
            print(f"ok   shards: {name}", flush=True)


if __name__ == "__main__":
    main()
