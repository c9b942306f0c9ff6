#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Speed and memory of generation on a CPU, compared with peers.

    bench/generate.py --peer-python PYTHON --llama-python PYTHON
                      [--shape llama3.2-1b] [--batches 1,8]
                      [--compute float32,bfloat16] [--prompt 128] [--new 64]
                      [--rounds 3] [--work DIR] [--json FILE]
    bench/generate.py --fast

All generate greedily from the same random prompts, with random bf16 weights of
the shape, and take turns:

    ours           NF4 with double quantization, r = 16 on all linears
    transformers   + PEFT + bitsandbytes, the same weights and adapter
    llama.cpp      q4_0 with the LM head and embeddings in f16, no adapter

--peer-python needs torch, transformers, peft and bitsandbytes; --llama-python
llama-cpp-python and gguf. Without one, its peer is left out.

Reported for each batch: tokens/s of the decode (all rows together, after their
first tokens), tokens/s of the prompts, and the peak of resident memory, each
the median of --rounds. "of bound" is our decode's speed at batch 1, relative to
reading the bytes of the base once for each token at the machine's copy
bandwidth (qlora-run --calibrate). "of forward" is the speed of prompts relative
to an evaluation of the same tokens.

--fast generates with a tiny shape and without peers, and checks that all rows
of a batch have the tokens that they have alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import cpu_machine
import ours
from shapes import (REPOSITORY, SHAPES, write_adapter, write_batch,
                    write_config, write_model)

HERE = os.path.dirname(os.path.abspath(__file__))


def prompts_of(vocabulary, rows, length):
    return np.random.default_rng(7).integers(
        0, vocabulary, (rows, length)).tolist()


class Child:
    """A process that answers in lines of JSON, on standard output."""

    def open(self, words, **options):
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True,
                                      **options)
        self.receive()

    def receive(self):
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{self.name}: {answer['error']}")
        return answer

    def stop(self):
        self.child.stdin.close()
        if self.child.wait():
            raise SystemExit(f"{self.name} failed")


class Ours(Child):
    """`qlora-run --generate` with a program of its own for each batch."""

    def __init__(self, options, folder, config, compute):
        self.folder, self.compute = folder, compute
        self.options, self.config = options, config
        self.name = f"ours, {compute}"

    def program(self, batch):
        """Compiles the program. Returns it and its plan."""
        length = self.options.prompt + self.options.new
        return ours.planned(
            self.folder, f"generate-{batch}-{self.compute}", self.compute,
            "--entries", "generate", "--generation-batch", str(batch),
            "--generation-length", str(length), "--prefill-chunk-size",
            str(min(256, self.options.prompt)), *self.options.compile_flag,
            length=length)

    def start(self, batch):
        module, self.plan = self.program(batch)
        command = [f"{ours.TOOLS}/qlora-run", module, "--generate",
                   "--model-name-or-path", self.folder,
                   "--adapter-name-or-path",
                   os.path.join(self.folder, "adapter"), "--base-cache",
                   "none"]
        self.open(command)

    def round(self, prompts, new):
        """Generates `new` tokens for each prompt. Returns the measurements and
        the tokens."""
        start = time.perf_counter()
        for number, ids in enumerate(prompts):
            self.child.stdin.write(json.dumps(
                {"id": number, "input_ids": ids, "max_new_tokens": new}) + "\n")
        self.child.stdin.flush()
        tokens, times, first = [[] for _ in prompts], [], 0
        while any(len(row) < new for row in tokens):
            answer = self.receive()
            tokens[answer["id"]].append(answer["token"])
            times.append(time.perf_counter())
            first = times[-1] if len(tokens[answer["id"]]) == 1 else first
        # Rows decode while later prompts wait. So the decode is measured from
        # the last first token on, over the tokens that follow it.
        following = sum(when > first for when in times)
        return {"prefill_seconds": first - start,
                "decode_seconds": times[-1] - first,
                "decoded": following, "peak": self.peak()}, tokens

    def peak(self):
        with open(f"/proc/{self.child.pid}/status") as lines:
            return next(int(line.split()[1]) << 10 for line in lines
                        if line.startswith("VmHWM"))


class Peer(Child):
    """A script that answers requests in lines of JSON, as Ours.round does."""

    def __init__(self, name, words):
        self.name, self.words = name, words

    def start(self, batch):
        self.open([*self.words, "--batch", str(batch)],
                  env=cpu_machine.peer_environment())

    def round(self, prompts, new):
        self.child.stdin.write(json.dumps({"prompts": prompts, "new": new})
                               + "\n")
        self.child.stdin.flush()
        answer = self.receive()
        return answer, answer.pop("tokens")


def competitors(options, folder, config):
    found = [Ours(options, folder, config, compute)
             for compute in options.compute.split(",")]
    script = lambda name: os.path.join(HERE, name)
    if options.peer_python:
        for compute in options.compute.split(","):
            found.append(Peer(f"transformers, {compute}", [
                options.peer_python, script("baseline_generate.py"), "--model",
                folder, "--adapter", os.path.join(folder, "adapter"),
                "--compute", compute]))
    if options.llama_python:
        found.append(Peer("llama.cpp q4_0", [
            options.llama_python, script("baseline_llama.py"), "--model",
            folder, "--tokens", str(options.prompt + options.new)]))
    return found


def median(rounds, value):
    return statistics.median(value(one) for one in rounds)


def measure_batch(options, folder, config, batch):
    """Measures all competitors in turns. Only one is in memory at a time, as
    each would change the memory of others."""
    prompts = prompts_of(config["vocab_size"], batch, options.prompt)
    rows = []
    for one in competitors(options, folder, config):
        one.start(batch)
        one.round(prompts, 2)  # reads pages, and warms up
        rounds = [one.round(prompts, options.new)
                  for _ in range(options.rounds)]
        one.stop()
        measured = [values for values, _ in rounds]
        rows.append({
            "name": one.name, "batch": batch,
            "decode": median(measured, lambda v: v["decoded"]
                             / v["decode_seconds"]),
            "best_decode": max(v["decoded"] / v["decode_seconds"]
                               for v in measured),
            "prefill": median(measured, lambda v: batch * options.prompt
                              / v["prefill_seconds"]),
            "peak": max(v["peak"] for v in measured),
            "tokens": rounds[-1][1], "plan": getattr(one, "plan", None),
            "compute": getattr(one, "compute", None)})
        print(f"batch {batch}: {one.name:24} "
              f"{rows[-1]['decode']:8.2f} tokens/s, prompts "
              f"{rows[-1]['prefill']:8.1f} tokens/s, "
              f"{rows[-1]['peak'] / 2**20:7.0f} MiB", flush=True)
    return rows


def base_bytes(plan):
    """Returns the bytes of the frozen weights, all of which a token reads if
    the embeddings are also the LM head."""
    return plan["arenas"]["frozen"]


def forward_rate(options, folder, config, compute):
    """Returns the tokens/s of an evaluation of one row, as in training."""
    module, _ = ours.planned(folder, f"forward-{compute}", compute,
                             length=options.prompt)
    paths = [os.path.join(folder, f"{name}.safetensors")
             for name in ("one", "many")]
    for path, count in zip(paths, (1, 1 + options.forwards)):
        write_batch(path, config["vocab_size"], options.prompt, count)
    seconds = []
    for path in paths:
        start = time.perf_counter()
        ours.evaluate(module, paths[0], path, "--adapter-name-or-path",
                      os.path.join(folder, "adapter"))
        seconds.append(time.perf_counter() - start)
    return options.forwards * options.prompt / (seconds[1] - seconds[0])


def bounds(options, folder, config, results):
    """Adds the speed of ours relative to its bounds."""
    with open(cpu_machine.calibrate(options.work)) as file:
        copy = json.load(file)["copy_gbps"] * 1e9
    for row in results:
        if row["batch"] == 1 and row["compute"]:
            row["of_bound"] = row["best_decode"] * base_bytes(
                row["plan"]) / copy
            row["of_forward"] = row["prefill"] / forward_rate(
                options, folder, config, row["compute"])


def report(results):
    lines = ["| Batch | | decode, tokens/s | prompts, tokens/s | memory, MiB | "
             "of bound | of forward |", "|---|---|---|---|---|---|---|"]
    for row in results:
        rest = [f"{row[name]:.2f}" if name in row else ""
                for name in ("of_bound", "of_forward")]
        lines.append(" | ".join([
            f"| {row['batch']}", row["name"], f"{row['decode']:.2f}",
            f"{row['prefill']:.0f}", f"{row['peak'] / 2**20:.0f}", *rest])
            + " |")
    return "\n".join(lines)


def differing(results):
    """Returns which rows of ours have other tokens than alone."""
    failures = []
    for compute in {row["compute"] for row in results if row["compute"]}:
        tokens = [row["tokens"] for row in results
                  if row["compute"] == compute]
        failures += [f"{compute}: other tokens in a batch of {len(batch)}"
                     for batch in tokens[1:] if batch[0] != tokens[0][0]]
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama3.2-1b")
    parser.add_argument("--compute", default="float32,bfloat16")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forwards", type=int, default=8)
    parser.add_argument("--compile-flag", action="append", default=[])
    parser.add_argument("--peer-python")
    parser.add_argument("--llama-python")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--work",
                        default=os.path.join(REPOSITORY, "out", "bench"))
    parser.add_argument("--tools", default=ours.TOOLS)
    parser.add_argument("--json")
    options = parser.parse_args()
    ours.TOOLS = os.path.abspath(options.tools)
    if options.fast:
        options.shape, options.prompt, options.new = "tiny-llama", 20, 6
        options.rounds, options.work = 1, tempfile.mkdtemp()
    folder = os.path.join(options.work, options.shape)
    config = write_config(folder, SHAPES[options.shape])
    write_model(folder, SHAPES[options.shape])
    write_adapter(os.path.join(folder, "adapter"),
                  {"model_type": SHAPES[options.shape]["family"], **config})
    results = []
    for batch in map(int, options.batches.split(",")):
        results += measure_batch(options, folder, config, batch)
    if not options.fast:
        bounds(options, folder, config, results)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file)
    sys.exit(ours.conclude(report(results), differing(results)))


if __name__ == "__main__":
    main()
