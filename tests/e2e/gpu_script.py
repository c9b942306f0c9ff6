#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Runs bench/gpu.sh on the software CUDA platform, with tiny shapes.

    gpu_script.py --tools build/bin

  prepare  a bundle with the platform's compiler; a refused plan is printed
  parts    micro, conformance, goldens, nccl, g1, g3, g4, g7 give the expected
           rows, and the measured values decide whether a target is met
  kept     a call without --part runs only the missing parts, and keeps the
           other results although their file was removed (compute-sanitizer
           and nvidia-smi are scripts)
  stopped  results measured before the script was stopped stay, and the
           interrupted part does not count as done
  faults   a failing CUDA call makes its part fail, and the exit code is 1
  errors   no bundle, no driver, another kind of GPU: one line each
"""

import argparse
import glob
import json
import os
import re
import stat
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "..", "..", "bench", "gpu.sh")
SHAPES = os.path.join(HERE, "..", "Inputs", "gpu_shapes.json")
HOST_NVCC = os.path.join(HERE, "..", "cuda", "host-nvcc")
# Number of GEMM algorithms per matmul that a run measures.
RUN_CANDIDATES = 8
PARTS = "micro,conformance,goldens,nccl,g1,g3,g4,g7"
SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
"$@" && echo "========= ERROR SUMMARY: 0 errors"
"""
CLOCKS = """#!/bin/sh
case "$*" in *driver_version*) echo "580.65, 700.00, 1980, 2619"; exit;; esac
while sleep 0.05; do echo "1500, 2619, 400.5, 60"; done
"""
failed = 0


def expect(name, condition, text):
    global failed
    failed += not condition
    print(f"{'ok  ' if condition else 'FAIL'} {name}: {text}", flush=True)


class Script:
    """gpu.sh with separate scratch space."""

    def __init__(self, tools, work):
        self.work = work
        self.bundle = os.path.join(work, "bundle")
        self.out = os.path.join(work, "results.json")
        self.platform = os.path.join(tools, "..", "cuda-platform")
        self.tools = tools
        self.programs = os.path.join(work, "programs")
        os.makedirs(self.programs)
        for name, text in (("compute-sanitizer", SANITIZER),
                           ("nvidia-smi", CLOCKS)):
            path = os.path.join(self.programs, name)
            with open(path, "w") as file:
                file.write(text)
            os.chmod(path, stat.S_IRWXU)

    def start(self, *words, **variables):
        environment = {**os.environ, "TMPDIR": self.work,
                       "XDG_CACHE_HOME": self.work,
                       "PATH": f"{self.programs}:{os.environ['PATH']}",
                       "LD_LIBRARY_PATH": os.path.abspath(self.platform),
                       **variables}
        return subprocess.Popen([SCRIPT, *words], env=environment, text=True,
                                stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def run(self, *words, **variables):
        """Returns exit code and all output."""
        process = self.start(*words, **variables)
        text, _ = process.communicate(timeout=300)
        return process.returncode, text

    def prepare(self):
        return self.run("--prepare", self.bundle, "--tools", self.tools,
                        "--cuda-compiler", HOST_NVCC, "--shapes", SHAPES)

    def measure(self, parts, *words, **variables):
        return self.run("--bundle", self.bundle, "--out", self.out, "--part",
                        parts, *words, **variables)

    def results(self):
        with open(self.out) as file:
            return json.load(file)

    def rows(self):
        return self.results()["rows"]


def verdicts(rows, part, case=None, what=None):
    return [row["verdict"] for row in rows if row["part"] == part
            and case in (None, row["case"]) and what in (None, row["what"])]


def check_prepare(script):
    code, text = script.prepare()
    expect("prepare", code == 0, text.splitlines()[-1])
    refused = [line for line in text.splitlines() if "not planned" in line]
    expect("prepare", len(refused) == 1 and "smallest plan" in refused[0],
           "; ".join(refused)[:100])


def check_figures(rows):
    expect("parts", verdicts(rows, "g1", what="tokens/s") == ["missed"]
           and verdicts(rows, "g3", what="tokens/s") == ["met"],
           "10^12 tokens/s are missed, 10^-9 are met")
    speeds = [row["value"] for row in rows if row["what"] == "tokens/s"]
    expect("parts", len(speeds) == 3 and all(rate > 0 for rate in speeds),
           "three runs have a speed")
    expect("parts",
           verdicts(rows, "g4", "smallest", "context, code, graphs, GiB")
           == ["met"], "the smallest plan is kept")
    bad = [row["note"] for row in rows if row["part"] == "g4"
           and row["verdict"] == "failed"]
    expect("parts", len(bad) == 1 and "not planned" in bad[0],
           "a run without a plan fails alone")
    times = {row["what"]: row["value"] for row in rows
             if row["part"] == "g7"}
    expect("parts", times["compile, cold, s"] > times["compile, cached, s"]
           and times["start to first loss, s"] > 0, f"g7: {sorted(times)}")


def check_micro(rows, lines):
    found = {}
    for row in rows:
        if row["part"] == "micro":
            kernel = row["case"].split()[0]
            found.setdefault((kernel, row["what"]), []).append(row["verdict"])
    expect("micro", found.get(("decode.cuda", "TB/s"))
           and found.get(("rms_norm", "of copy"))
           and len(found.get(("attention.cuda", "TFLOP/s"), ())) == 3
           and len(found.get(("attention_grad.cuda", "TFLOP/s"), ())) == 3
           and found.get(("head_loss_grad.cuda", "passes over the logits"))
           and found.get(("a", "us a node")) == ["measured"],
           f"{len(found)} kinds of rows")
    expect("micro", set(found["attention.cudnn", "refused"]) == {"skipped"},
           "cuDNN's attention says why not")
    # The platform's time of an algorithm is a hash of its bytes. `micro`
    # measures more algorithms than a run, so it may find a faster one.
    products = [row for row in rows if row["part"] == "micro"
                and row["what"] == "best / used algorithm"]
    most = min(int(re.search(r"best of (\d+)", row["note"])[1])
               for row in products)
    expect("micro", len(products) > 10 and most > RUN_CANDIDATES and all(
        0 < row["value"] < 1 + 1e-9 and row["verdict"] == (
            "met" if row["value"] >= 0.9 else "missed") for row in products),
        f"{len(products)} GEMMs compared with the best of {most} algorithms")
    expect("micro", len(lines) > 50 and all(
        line.get("refused") or line["microseconds"] > 0 for line in lines),
        f"{len(lines)} launches")


def check_kept_figures(rows, run):
    steps = [row for row in rows if row["part"] == "profile"]
    expect("figures", {"step, profiled, ms", "attention, ms"} <=
           {row["what"] for row in steps} and all(
               "predicted" in row["note"] for row in steps),
           f"{len(steps)} rows of a profile")
    expect("figures", "attention attention.cuda" in run["profile"]["kernels"],
           "the kernels that ran")
    products = run["gemm_table"]["cards"][0]["products"]
    expect("figures", len(products) > 10, f"{len(products)} products")
    expect("figures", run["clocks"].get("power.draw") == 3 * [400.5],
           f"clocks {run['clocks']}")
    expect("figures", any("tiny-llama" in line for line in run["said"]),
           "what the run said")


def check_nccl(rows):
    found = {row["case"]: row for row in rows if row["part"] == "nccl"}
    expect("nccl", list(found) == [
        "dp2 qwen3-ranks", "fsdp2dp2 qwen3-ranks", "rank 1 killed",
        "rank 0 killed", "rank 1 stopped"] and all(
            row["verdict"] == "passed" for row in found.values()),
        ", ".join(f"{case} {row['verdict']} {row['value']}"
                  for case, row in found.items()))
    expect("nccl", all("logits" in row["note"] and "gradient" in row["note"]
                       for case, row in found.items() if "qwen3" in case),
           found["dp2 qwen3-ranks"]["note"])
    expect("nccl", found["rank 1 killed"]["value"] < 5
           and "rank 1" in found["rank 1 killed"]["note"]
           and 10 < found["rank 1 stopped"]["value"] < 15
           and "rank 1" in found["rank 1 stopped"]["note"],
           found["rank 1 stopped"]["note"])


def check_parts(script):
    code, text = script.measure(PARTS)
    rows = script.rows()
    expect("parts", code == 1 and "1 failed" in text, text.splitlines()[-1])
    tests = [row for row in rows if row["part"] == "conformance"]
    expect("parts", len(tests) == 1 and tests[0]["verdict"] == "passed"
           and tests[0]["what"] == f"passed, of {tests[0]['value']}"
           and tests[0]["value"] > 5, f"conformance: {tests}")
    program = glob.glob(os.path.join(script.work, "qlora-gpu-*", "bundle-*",
                                     "bin", "KernelTests"))
    with open(program[0], "rb") as file:
        expect("parts", b"cuda-platform" not in file.read(),
               "no run path leads to the software platform")
    cases = [(row["verdict"], row["what"], row["value"]) for row in rows
             if row["part"] == "goldens"]
    expect("parts", cases == 4 * [("passed", "passed, of 1", 1)],
           f"goldens: {cases}")
    check_nccl(rows)
    check_figures(rows)
    runs = script.results()["runs"]
    check_micro(rows, runs["micro"]["lines"][1:])
    check_kept_figures(rows, runs["g1 tiny-llama"])


def check_kept(script):
    before = [row for row in script.rows() if row["part"] != "card"]
    back = os.path.join(script.work, "back")
    os.makedirs(back)
    os.remove(script.out)
    code, text = script.run("--bundle", script.bundle, OUT=back)
    script.out = os.path.join(back, "gpu-results.json")
    rows = script.rows()
    seen = verdicts(rows, "sanitizer", what="summary")
    expect("kept", code == 0 and seen == 7 * ["passed"],
           f"{len(seen)} summaries; {text.splitlines()[-1]}")
    expect("kept", [row for row in rows
                    if row["part"] not in ("card", "sanitizer")] == before,
           f"{len(before)} rows of other parts")
    code, text = script.measure("g3", "--limit", "20")
    expect("kept", code == 1 and "no time for g3" in text and verdicts(
        script.rows(), "g3"), text.splitlines()[-1])
    traces = glob.glob(os.path.join(os.path.dirname(script.out), "..",
                                    "profile-*.json.gz"))
    expect("kept", len(traces) == 1, f"traces {traces}")


def check_stopped(script):
    whole = len(verdicts(script.rows(), "micro"))
    # Try again if the signal came too early (a row is printed before it is in
    # the file) or too late (the part was over).
    for _ in range(5):
        process = script.start("--bundle", script.bundle, "--out", script.out,
                               "--part", "micro")
        shown = 0
        for line in process.stdout:
            shown += line.startswith("micro  ")
            if shown == 3:
                process.terminate()
                break
        process.communicate(timeout=60)
        if process.returncode == 143:
            break
    results = script.results()
    seen = len(verdicts(results["rows"], "micro"))
    expect("stopped", process.returncode == 143 and 0 < seen < whole
           and "micro" not in results["finished"],
           f"{seen} of {whole} rows of micro, done: {results['finished']}")


def check_faults(script):
    code, _ = script.measure("g3,conformance",
                             QLORA_TEST_CUDA_FAIL="cuModuleLoadData:1:999")
    rows = script.rows()
    notes = [row["note"] for row in rows if row["part"] == "g3"]
    expect("faults", code == 1 and len(notes) == 1
           and "cuModuleLoadData" in notes[0], f"g3: {notes}"[:200])
    expect("faults", verdicts(rows, "conformance") == ["failed"],
           "conformance fails")
    code, _ = script.measure("nccl/1",
                             QLORA_TEST_CUDA_FAIL="ncclAllReduce:2:2@1")
    rows = [row for row in script.rows() if row["unit"] == "nccl/1"]
    expect("faults", code == 1 and len(rows) == 4 and all(
        row["verdict"] == "failed" and "ncclAllReduce" in row["note"]
        for row in rows), f"nccl: {rows}"[:300])


def check_errors(script):
    for name, words, variables, said in (
            ("no bundle", ("--bundle", "/nowhere"), {}, "is not a bundle"),
            ("no driver", ("--bundle", script.bundle),
             {"LD_LIBRARY_PATH": ""}, "no CUDA driver here"),
            ("no GPU", ("--bundle", script.bundle),
             {"QLORA_TEST_CUDA_DEVICES": "none"}, "sees no GPU"),
            ("another GPU", ("--bundle", script.bundle),
             {"QLORA_TEST_CUDA_DEVICES": "sm_80:1024"}, "--cuda-arch 80"),
            ("no compiler", ("--prepare", script.bundle, "--tools",
                             script.tools, "--cuda-compiler", "no-nvcc"),
             {}, "no CUDA compiler 'no-nvcc'")):
        code, text = script.run(*words, **variables)
        lines = text.splitlines()
        expect("errors", code == 1 and len(lines) == 1 and said in lines[0],
               f"{name}: {lines[-1:]}"[:200])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        script = Script(os.path.abspath(options.tools), work)
        check_prepare(script)
        if not failed:
            check_parts(script)
            check_kept(script)
            check_stopped(script)
            check_faults(script)
            check_errors(script)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
