#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Predicts steps of 8B, 70B and 0.6B shapes on GPUs that are not present.

    bench/predict.py [--gpu h200] [--memory-limit 130GiB] [--work DIR]
                     [--disable-kernels ROW,...] [CASE...]

Compiles each case for one architecture (needs nvcc, but no GPU) within the
GPU's memory, and runs `qlora-run --simulate GPU`. Prints Markdown: the
assumptions and kernels of the low and high estimates, predicted tokens per
second and milliseconds, published figures and a roofline, the parts of a step,
the memory plan and the compile time. Cases of generation (D) have a table of
their own: the decode, and its speed relative to reading the base once at the
GPU's copy rate. Measures nothing on a GPU.
"""

import argparse
import json
import os
import resource
import subprocess
from dataclasses import dataclass

from ours import TOOLS, call
from shapes import REPOSITORY, SHAPES, write_shape

QLORA = ("--load-in-4bit", "--bnb-4bit-use-double-quant")


@dataclass
class Case:
    """A row of the table. `roofline` is an estimate of tokens per second on one
    GPU, with fused LoRA, two decodes of each 4-bit weight, recomputed
    element-wise ops, and no overlap."""
    name: str
    shape: str
    length: int
    batch: int = 2
    accumulation: int = 4
    flags: tuple = QLORA
    gpus: tuple = (1,)
    published: str = ""
    published_gpus: int = 1
    roofline: int = 0
    limit: str = ""

    def compile_flags(self):
        return ("--per-device-train-batch-size", str(self.batch),
                "--max-length", str(self.length))


CASES = (
    Case("G1 Llama-3.1-8B QLoRA", "llama3.1-8b", 2048, gpus=(1, 2, 4, 8, 64),
         published="Unsloth 8,400 (H200)", roofline=20313),
    Case("G1 Llama-3.1-8B QLoRA, 24 GiB", "llama3.1-8b", 2048, limit="24GiB",
         roofline=20313),
    Case("G1 Qwen3-8B QLoRA", "qwen3-8b", 2048,
         published="Surogate 9,400 (H100)", roofline=19921),
    Case("G2 Llama-3.1-8B bf16 LoRA", "llama3.1-8b", 4096, flags=(),
         published="NeMo AutoModel 12,473 (H100)", roofline=19718),
    Case("G2 Llama-3.1-8B QLoRA", "llama3.1-8b", 4096, roofline=19338),
    Case("G2 Llama-3.1-8B QLoRA", "llama3.1-8b", 8192, batch=1,
         roofline=17025),
    Case("G3 Qwen3-0.6B QLoRA", "qwen3-0.6b", 2048,
         published="Unsloth 18,300 (H200)", roofline=139000),
    Case("G4 Llama-3.1-8B QLoRA, 6.6 GiB", "llama3.1-8b", 2048, limit="6.6GiB",
         published="torchtune 7.4 GiB"),
    Case("G5 Llama-3.1-70B QLoRA", "llama3.1-70b", 2048, gpus=(1, 4),
         published="FSDP-QLoRA 3,144 (4 x H100)", published_gpus=4,
         roofline=2400),
)


@dataclass
class Generation:
    """A row of the table of generation: `rows` at a time, of `length` tokens at
    most."""
    name: str
    shape: str
    rows: int
    length: int = 2048
    flags: tuple = QLORA
    limit: str = ""

    def compile_flags(self):
        return ("--entries", "generate", "--generation-batch", str(self.rows),
                "--generation-length", str(self.length))


GENERATIONS = tuple(
    Generation(f"D{number} Llama-3.1-8B NF4", "llama3.1-8b", rows)
    for number, rows in enumerate((1, 8, 64), 1))


def cpu_seconds():
    """Returns the total CPU seconds of this script's ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compile_case(case, options):
    """Compiles a case. Returns the module and qloracc's CPU seconds, or None
    and the error. Kernels may be cached."""
    folder = os.path.join(options.work, f"{case.shape}-{case.length}")
    write_shape(folder, SHAPES[case.shape], max(4096, case.length))
    model, module = f"{folder}/m.mlir", f"{folder}/t.so"
    call(f"{TOOLS}/qlora-import", folder, "-o", model)
    start = cpu_seconds()
    done = subprocess.run(
        [f"{TOOLS}/qloracc", model, "-o", module, "--target", "cuda",
         "--cuda-arch", options.cuda_arch, "--device-profile", options.gpu,
         "--compute-dtype", "bfloat16", "--lora-r", "16", "--lora-alpha", "32",
         "--memory-limit", case.limit or options.memory_limit,
         *case.compile_flags(), *case.flags], capture_output=True, text=True)
    seconds = cpu_seconds() - start
    if done.returncode:
        return None, done.stderr.strip().splitlines()[0]
    return module, seconds


def null_device(module, options, *flags):
    done = subprocess.run(
        [f"{TOOLS}/qlora-run", module, "--simulate", options.gpu,
         "--disable-kernels", options.disable_kernels, *flags],
        capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def low_assumption(module, options):
    """Returns qlora-run's line with the assumptions of the low estimate."""
    [line] = [line for line in null_device(module, options).splitlines()
              if line.startswith("  low:")]
    return line.strip()


def predict(case, module, gpus, options):
    report = json.loads(null_device(
        module, options, "--gpus", str(gpus), "--gradient-accumulation-steps",
        str(case.accumulation), "--log-format", "json"))
    return report["predictions"][0], plan_bytes(report)


def plan_bytes(report):
    return sum(size for arena, size in report["memory_bytes"].items()
               if arena != "host")


def predict_decode(case, module, options):
    """Returns the prediction of a decode, the seconds in which the GPU copies
    the bytes of the base that a decode reads, and the plan."""
    report = json.loads(null_device(module, options, "--log-format", "json"))
    [decode] = [step for step in report["predictions"]
                if step["entry"] == "decode"]
    shape = SHAPES[case.shape]
    is_tied = shape.get("tie_word_embeddings", True)
    # A decode reads only single rows of an untied embedding.
    unread = 0 if is_tied else 2 * shape["vocab_size"] * shape["hidden_size"]
    bound = (report["memory_bytes"]["frozen"] - unread) / (
        report["assumed"]["copy_gbps"] * 1e9)
    return decode, bound, plan_bytes(report)


def milliseconds(figure, micro_batches):
    """Returns the milliseconds of each part of a step, per micro-batch, so that
    cases are comparable."""
    each = 1e3 / micro_batches
    parts = {name: part["seconds"] * each
             for name, part in figure["parts"].items()}
    parts["launches"] = figure["launch_seconds"] * each
    parts["saved by overlap"] = 0 - figure["overlapped_seconds"] * each
    parts["exposed"] = figure["exposed_communication_seconds"] * each
    return parts


def attention_kernels(prediction):
    """Returns the libraries of the attention kernels, of the forward and the
    backward: "cudnn, cudnn"."""
    return ", ".join(name.split(".")[1]
                     for name in prediction["assumed_kernels"]
                     if name.startswith("attention"))


def print_rates(rows, gpu):
    others = sorted({name for _, _, prediction, _, _ in rows
                     for name in prediction["assumed_kernels"]
                     if not name.startswith("attention")})
    print(f"On {gpu}, low to high, with {', '.join(others)}.\n")
    print("| case | T x B x GA | GPUs | predicted tok/s | step, ms | share of "
          "GEMM rate | attention | roofline | published | plan | compile, CPU "
          "|")
    print("|---" * 11 + "|")
    for case, gpus, high, plan, seconds in rows:
        low = high["low"]
        roofline = f"{case.roofline * gpus:,}" if case.roofline else ""
        print(f"| {case.name} | {case.length} x {case.batch} x "
              f"{case.accumulation} | {gpus} | "
              f"{low['tokens_per_second']:,.0f} to "
              f"{high['tokens_per_second']:,.0f} | "
              f"{low['step_seconds'] * 1e3:,.1f} to "
              f"{high['step_seconds'] * 1e3:,.1f} | "
              f"{low['share_of_gemm_rate']:.0%} to "
              f"{high['share_of_gemm_rate']:.0%} | {attention_kernels(high)} | "
              f"{roofline} | "
              f"{case.published if gpus == case.published_gpus else ''} | "
              f"{plan / 2**30:.1f} GiB | {seconds:.1f} s |")


def print_parts(rows):
    names = list(milliseconds(rows[0][2], 1))
    print("\n| ms of a micro-batch on one GPU | figure | " +
          " | ".join(names) + " |")
    print("|---" * (len(names) + 2) + "|")
    for case, gpus, high, _, _ in rows:
        if gpus > 1:
            continue
        for figure, step in (("low", high["low"]), ("high", high)):
            parts = milliseconds(step, high["micro_batches"])
            print(f"| {case.name}, T = {case.length} | {figure} | " +
                  " | ".join(f"{parts[name]:.1f}" for name in names) + " |")


def print_generations(options):
    print("\n| decode | rows x length | predicted tok/s | ms | launches, ms | "
          "of bound | plan |\n" + "|---" * 7 + "|")
    for case in chosen(GENERATIONS, options):
        module, seconds = compile_case(case, options)
        if module is None:
            raise SystemExit(f"{case.name}: {seconds}")
        high, bound, plan = predict_decode(case, module, options)
        low = high["low"]
        spread = lambda of: f"{of(low)} to {of(high)}"
        print(f"| {case.name} | {case.rows} x {case.length} | "
              + spread(lambda p: f"{p['tokens_per_second']:,.0f}") + " | "
              + spread(lambda p: f"{p['step_seconds'] * 1e3:.2f}") + " | "
              f"{high['launch_seconds'] * 1e3:.2f} | "
              + spread(lambda p: f"{bound / p['step_seconds']:.0%}")
              + f" | {plan / 2**30:.1f} GiB |")


def chosen(cases, options):
    return [case for case in cases if not options.cases or any(
        word in case.name for word in options.cases)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", help="words of a case's name")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--cuda-arch", default="sm_90")
    parser.add_argument("--memory-limit", default="130GiB")
    parser.add_argument("--disable-kernels", default="[]",
                        help="rows of Kernels.def to predict without, such as "
                             "attention.cudnn,attention_grad.cudnn")
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "predict"))
    options = parser.parse_args()
    rows = []
    for case in chosen(CASES, options):
        module, seconds = compile_case(case, options)
        if module is None:
            print(f"{case.name}, T = {case.length}: {seconds}\n")
            continue
        low = low_assumption(module, options)
        for gpus in case.gpus:
            prediction, plan = predict(case, module, gpus, options)
            rows.append((case, gpus, prediction, plan, seconds))
    if rows:
        print(low)
        print_rates(rows, options.gpu)
        print_parts(rows)
    if chosen(GENERATIONS, options):
        print_generations(options)


if __name__ == "__main__":
    main()
