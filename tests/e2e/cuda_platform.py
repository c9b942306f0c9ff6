#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Trains one golden case on the software CUDA platform and checks details.

    cuda_platform.py --tools build/bin [--case llama-lora] [--bf16]
                     [--offload LIST]

  Pinned host memory has the embedding and what --offload lists.

  counts   a micro-batch and an update are one graph launch each, except the
           first run of a graph's commands; the host waits for the previous
           step, never for the newest work; weights are copied through a
           fixed number of pinned bytes
  null     the null device finds no race between queues
  seeds    the same losses, bit for bit, in every order that streams may run
  direct   the same losses without graphs
  rounded  in bfloat16 adapters are rounded once a step, not before each
           matmul: fewer launches, and the same losses
  gpu      the same losses with all but the embedding in device memory
  guarded  the same losses when every kernel gets each operand in a separate
           allocation
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
DIRECT = ("--cuda-graphs", "false")
# Bytes of pinned memory: two halves of 16 MiB, and a buffer for results.
PINNED = (32 << 20) + 4096
SHARES = 4  # fractions of labelled rows; each has a graph per entry


class Failure(Exception):
    pass


class Case:
    """A compiled case; each run is a process with its own environment."""

    def __init__(self, tools, name, work, archs="90", flags=(), model=None):
        self.tools, self.work, self.flags = os.path.abspath(tools), work, flags
        self.cache = None  # user's cache; None: a new one per run
        folder = os.path.join(HERE, "..", "Inputs", "goldens", name)
        self.yaml = os.path.join(folder, "train.yaml")
        self.module = os.path.join(work, "t.so")
        graph = os.path.join(work, "m.mlir")
        self.check([f"{self.tools}/qlora-import", model or f"{folder}/model",
                    "-o", graph])
        self.check([f"{self.tools}/qloracc", graph, "-o", self.module,
                    "--config", self.yaml, "--target", "cuda", "--cuda-arch",
                    archs, "--cuda-compiler",
                    os.path.join(HERE, "..", "cuda", "host-nvcc"),
                    "--offload-embedding", "true", *flags])
        with open(self.yaml) as lines:
            self.micro_batches = next(
                (int(line.split(":")[1]) for line in lines
                 if line.startswith("gradient_accumulation_steps")), 1)

    @staticmethod
    def check(command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{command[0]}: {done.stderr[-500:]}")

    def run(self, flags=(), ranks=1, **variables):
        """Runs the case. Returns exit code, stderr, losses, and the platform's
        counters if there is one rank."""
        out = tempfile.mkdtemp(dir=self.work)
        report = os.path.join(out, "report-{pid}.json")
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": os.path.join(self.tools, "..", "cuda-platform"),
            "XDG_CACHE_HOME": self.cache or out,
            "QLORA_TEST_CUDA_REPORT": report,
            **{f"QLORA_TEST_CUDA_{k.upper()}": str(v)
               for k, v in variables.items()}}
        done = subprocess.run(
            [f"{self.tools}/qlora-run", self.module, "--config", self.yaml,
             "--gpus", str(ranks), "--output-dir", out,
             "--overwrite-output-dir", *self.flags, *flags],
            capture_output=True, text=True, env=environment, timeout=300)
        losses, metrics = [], os.path.join(out, "metrics.jsonl")
        if os.path.exists(metrics):
            with open(metrics) as lines:
                losses = [(m["loss"], m["grad_norm"])
                          for m in map(json.loads, lines) if "loss" in m]
        counts = {}
        for report in glob.glob(os.path.join(out, "report-*.json")):
            with open(report) as file:
                counts = json.load(file)
        return done.returncode, done.stderr, losses, counts

    def train(self, *flags, ranks=1, **variables):
        code, errors, losses, counts = self.run(flags, ranks, **variables)
        if code or not losses:
            raise Failure(f"qlora-run {' '.join(flags)} {variables} exited "
                          f"{code}: {errors[-800:]}")
        return losses, counts


def expect(name, condition, text):
    print(f"{'ok  ' if condition else 'FAIL'} {name}: {text}", flush=True)
    return 0 if condition else 1


def check_counts(case):
    # Measure no GEMM algorithms, because that creates additional graphs.
    quiet = ("--gemm-table", "heuristic")
    _, few = case.train("--max-steps", "4", *quiet)
    _, many = case.train("--max-steps", "14", *quiet)

    def per_step(name):
        return (many.get(name, 0) - few.get(name, 0)) / 10
    graphs, waits = per_step("cuGraphLaunch"), per_step("synchronisations")
    # An entry has one graph per fraction of labelled rows. The graph is
    # captured when the fraction occurs for the second time, so some may be
    # missing.
    entries = case.micro_batches + 1
    direct = 14 * entries - many.get("cuGraphLaunch", 0)
    captured = many.get("cuGraphInstantiateWithFlags", 0)
    failed = expect("counts", captured <= direct <= captured + SHARES,
                    f"{captured} graphs after {direct} runs without one")
    is_steady = graphs == entries and captured == few.get(
        "cuGraphInstantiateWithFlags", 0)
    launches = per_step("cuLaunchKernel") if is_steady else 0
    allocations = per_step("cuMemAlloc_v2") + per_step("cuMemHostAlloc")
    failed += expect("counts", launches == allocations == 0,
                     f"{graphs:g} graphs, {launches:g} launches and "
                     f"{allocations:g} allocations a step of "
                     f"{case.micro_batches} micro-batches")
    hosted = few.get("mapped host bytes", 0)
    failed += expect("counts", hosted > 0, f"{hosted} bytes of the embedding "
                     "are read where they are, in host memory")
    pinned = few.get("pinned host bytes", 0)
    failed += expect("counts", 0 < pinned <= PINNED, f"{pinned} bytes of "
                     "pinned memory for all that is written and read")
    return failed + expect("counts", waits == 0,
                           f"{waits:g} synchronisations a step")


def check_same(case, want):
    code, errors, _, _ = case.run(("--device", "null"))
    failed = expect("null", code == 0, errors[-300:] or "no race")
    for seed in (2, 3, 4, 5):
        losses, _ = case.train(seed=seed)
        failed += expect("seeds", losses == want, f"seed {seed}")
    losses, _ = case.train(*DIRECT)
    failed += expect("direct", losses == want, "without graphs")
    losses, counts = case.train(module=case.module)
    guarded = counts.get("guarded launches", 0)
    return failed + expect("guarded", losses == want and guarded > 0,
                           f"{guarded} launches")


def check_rounded(options, work, flags, want, counts):
    """Compares with the program whose matmuls each round their operands."""
    folder = os.path.join(work, "unrounded")
    os.mkdir(folder)
    case = Case(options.tools, options.case, folder,
                flags=[*flags, "--disable-pass=round-adapters"])
    case.flags = flags  # for each run
    losses, others = case.train(*DIRECT)
    fewer, more = counts["cuLaunchKernel"], others["cuLaunchKernel"]
    return expect("rounded", losses == want and fewer < more,
                  f"{fewer} launches instead of {more}")


def check_gpu(options, work, flags, want):
    folder = os.path.join(work, "gpu")
    os.mkdir(folder)
    losses, _ = Case(options.tools, options.case, folder, flags=flags).train()
    return expect("gpu", losses == want,
                  f"without --offload {options.offload}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--case", default="llama-lora")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--offload", help="of qloracc")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        try:
            failed = 0
            flags = ["--compute-dtype", "bfloat16"] if options.bf16 else []
            plain = flags
            if options.offload:
                flags = [*flags, "--offload", options.offload]
            case = Case(options.tools, options.case, work,
                        flags=[*flags, "--offload-activations-policy", "all"]
                        if "activations" in (options.offload or "") else flags)
            case.flags = flags  # for each run
            want, _ = case.train()
            if options.offload:
                failed += check_gpu(options, work, plain, want)
            failed += check_counts(case) + check_same(case, want)
            if options.bf16:
                failed += check_rounded(options, work, flags, want,
                                        case.train(*DIRECT)[1])
        except Failure as failure:
            print(f"FAIL {failure}")
            failed = 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
