#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""generation.py CASE...: generates the prompts of golden cases, and compares
with transformers.

Each case is compiled with slots for `--slots` rows and with small chunks of
prompts. The prompts of generate.safetensors run at the same time, without and
with the adapter. Greedy tokens must be equal, and the logits of the first and
last token within golden_case.LOGITS. The same prompts, sampled in another order
and alone, must give the same tokens.
"""

import argparse
import json
import os
import subprocess
import tempfile

import numpy as np

import golden_case
import goldens
import safetensors_io
from golden_case import Failure, check

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
GOLDENS = os.path.join(ROOT, "tests/Inputs/goldens")
CAPACITY = 72  # the longest prompt has 40 tokens, an answer 24


class Engine:
    """A running `qlora-run --generate`."""

    def __init__(self, command, log, environment):
        self.log = open(log, "a")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, text=True, env=environment)
        self.ready = json.loads(self.process.stdout.readline() or "{}")
        if "ready" not in self.ready:
            raise Failure(f"{command} did not start:\n{open(log).read()}")

    def generate(self, requests):
        """Returns the answers of requests {"id": ..., ...}, by id."""
        for request in requests:
            self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answers = {request["id"]: [] for request in requests}
        left = len(requests)
        while left:
            line = json.loads(self.process.stdout.readline())
            if "error" in line:
                raise Failure(str(line))
            answers[line["id"]].append(line)
            left -= "finish" in line
        return answers

    def close(self):
        self.process.stdin.close()
        code = self.process.wait(60)
        self.log.close()
        if code:
            raise Failure(f"qlora-run --generate exited {code}")


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def compare(golden, side, answers, count, errors):
    for number in range(count):
        answer = answers[number]
        tokens = [line["token"] for line in answer]
        expected = golden[f"{side}.tokens.{number}"].tolist()
        if tokens != expected:
            raise Failure(f"prompt {number}, {side}: {tokens}\n"
                          f"expected {expected}")
        for place, line in (("first", answer[0]), ("last", answer[-1])):
            logits = golden[f"{side}.{place}_logits.{number}"]
            got = np.empty(len(logits))
            for token, value in line["logprobs"][1:]:
                got[token] = value
            check(errors, f"{place} logits",
                  np.abs(got - log_softmax(logits)).max(), golden_case.LOGITS)


def requests_of(golden, count, new_tokens, **options):
    return [{"id": number, "input_ids": golden[f"prompt.{number}"].tolist(),
             "max_new_tokens": new_tokens, **options}
            for number in range(count)]


def check_sampling(engine, golden, count):
    """Rows that are sampled together and alone must be equal."""
    rows = requests_of(golden, count, 24, temperature=1.3, top_k=50, top_p=0.95,
                       repetition_penalty=1.1, seed=5)
    tokens = [[line["token"] for line in engine.generate([row])[row["id"]]]
              for row in rows]
    together = engine.generate(rows[::-1] + [
        {**row, "id": row["id"] + count} for row in rows])
    for number in range(2 * count):
        got = [line["token"] for line in together[number]]
        if got != tokens[number % count]:
            raise Failure(f"prompt {number % count} alone: "
                          f"{tokens[number % count]}, with others: {got}")


def run_case(name, arguments, folder):
    is_cuda = arguments.target == "cuda"
    environment = goldens.cuda_environment(arguments, 1) if is_cuda else None
    case = os.path.join(GOLDENS, name)
    golden = safetensors_io.load(os.path.join(case, "generate.safetensors"))
    log = os.path.join(folder, "log")
    tool = lambda program: os.path.join(arguments.tools, program)
    model = os.path.join(folder, "model.mlir")
    program = os.path.join(folder, "train.so")
    golden_case.run([tool("qlora-import"), os.path.join(case, "model"), "-o",
                     model], log)
    golden_case.run([tool("qloracc"), model, "-o", program, "--config",
                     os.path.join(case, "train.yaml"), "--generation-batch",
                     str(arguments.slots), "--generation-length", str(CAPACITY),
                     "--prefill-chunk-size", str(arguments.chunk),
                     *(goldens.cuda_flags() if is_cuda else []),
                     *arguments.compile_flag], log)
    count = sum(name.startswith("prompt.") for name in golden)
    errors = {}
    for side, adapter in (("base", ""), ("adapter", None)):
        command = [tool("qlora-run"), program, "--generate", "--config",
                   os.path.join(case, "train.yaml"), "--base-cache", "none",
                   *arguments.run_flag]
        if adapter is not None:
            command += ["--adapter-name-or-path", adapter]
        engine = Engine(command, log, environment)
        vocabulary = engine.ready["ready"]["vocabulary"]
        answers = engine.generate(requests_of(golden, count, 24,
                                              logprobs=vocabulary))
        compare(golden, side, answers, count, errors)
        check_sampling(engine, golden, count)
        engine.close()
    worst = ", ".join(f"{what} {value:.1e}"
                      for what, (_, value) in errors.items())
    if any(ratio > 1 for ratio, _ in errors.values()):
        raise Failure(worst)
    print(f"{name:20} {worst}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--tools", default=os.path.join(ROOT, "build/bin"))
    parser.add_argument("--target", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--library-path", help="of a GPU's libraries; without "
                        "it, the software platform runs CUDA programs")
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--compile-flag", action="append", default=[])
    parser.add_argument("--run-flag", action="append", default=[])
    arguments = parser.parse_args()
    names = arguments.cases or sorted(
        name for name in os.listdir(GOLDENS)
        if os.path.exists(os.path.join(GOLDENS, name, "generate.safetensors")))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                run_case(name, arguments, folder)
            except Failure as failure:
                raise SystemExit(f"{name}: {failure}")


if __name__ == "__main__":
    main()
