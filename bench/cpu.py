#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Runs all CPU benchmarks in one command.

    bench/cpu.py --peer-python PYTHON [--rows NAME,...] [--again]
                 [--work DIR] [--json FILE] [--markdown FILE]
    bench/cpu.py --fast

Each row of the table has random bf16 weights of the real shape, NF4 with double
quantization, r = 16 on all linears, and AdamW. This project and the peer
(transformers + PEFT + bitsandbytes, baseline_cpu.py) take turns, each with
float32 and with bfloat16 compute. The ratio compares the faster type of each.
B = 1, T = 512.

    smollm2-135m, qwen2.5-0.5b, llama3.2-1b
    qwen3-moe-0.7b     experts in 4 bits, adapters only on attention
    qwen2.5-0.5b-sft   rows of 40 to 512 tokens, prompts not in the loss, 8 rows
                       per step; the peer pads rows, this project packs them
    limits             bench/limits.py: decreasing memory limits
    decode             bench/decode.py: forms of decoding
    scaling            bench/scaling.py: one rank and two ranks

Writes --json (default DIR/cpu.json) after each row. Rows that the file has are
measured again only with --again. Writes the tables to --markdown (default
DIR/cpu.md).

--fast uses tiny shapes without the peer, for tests. Losses are compared with
reference.py, and times are meaningless.

Exits with 1 if losses are wrong or the memory is not as predicted, but not if a
time misses its target. --peer-python needs torch, transformers, peft and
bitsandbytes.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
import time

import cpu_machine
import cpu_report
import cpu_rows
import decode
import limits
import ours
import scaling
from shapes import REPOSITORY


# An invented machine, so that predictions in tests are the same everywhere.
FAST_PROFILE = {"cpu": "test", "cores": 2, "gemm_f32_gflops": 170.0,
                "gemm_bf16_gflops": 340.0, "copy_gbps": 20.0,
                "decode_gbps": 12.0}


def profile_of(options):
    """Returns the path of this machine's device profile (device.json)."""
    if not options.fast:
        return cpu_machine.calibrate(options.work)
    path = os.path.join(options.work, "device.json")
    with open(path, "w") as file:
        json.dump(FAST_PROFILE, file)
    return path


def better_type(peak):
    """Returns the machine's faster compute type, for parts that are measured
    with only one. `peak` maps types to FLOP/s."""
    return max(peak, key=peak.get)


# Part -> function and model shape; then the shape and arguments of --fast.
PARTS = {
    "limits": (limits.measure, "smollm2-135m", "deep-llama",
               dict(length=256, rounds=1, steps=3)),
    "decode": (decode.measure, decode.SHAPES_MEASURED, ("tiny-llama",),
               dict(rows=(32, 128), samples=3)),
    "scaling": (scaling.measure, "smollm2-135m", "tiny-qwen2",
                dict(length=128, rounds=1, steps=3)),
}


def run_part(name, options):
    measure, shape, fast_shape, fast = PARTS[name]
    if options.fast:
        return measure(fast_shape, "float32", options.profile, options.work,
                       **fast)
    return measure(shape, better_type(cpu_machine.peak()), options.profile,
                   options.work)


def jobs(options):
    """Returns a dictionary: the name of a row or part -> a function that
    measures it."""
    rows = cpu_rows.FAST_ROWS if options.fast else cpu_rows.ROWS
    found = {row.name: lambda row=row: cpu_rows.measure(row, options)
             for row in rows}
    found |= {name: lambda name=name: run_part(name, options)
              for name in PARTS}
    if len(scaling.cores()) < 2:
        del found["scaling"]
    return found


def failures(result):
    if "failures" in result:
        return [f"{result['name']}: {why}" for why in result["failures"]]
    return cpu_rows.failures(result)


def load_results(options):
    try:
        return ours.read_json(options.json)["rows"]
    except FileNotFoundError:
        return {}


def save_results(options, rows):
    results = {"cpu": cpu_machine.cpu_name(), "cores": len(scaling.cores()),
               "date": datetime.date.today().isoformat(),
               "profile": ours.read_json(options.profile), "rows": rows}
    with open(options.json + ".part", "w") as file:
        json.dump(results, file, indent=1)
    os.rename(options.json + ".part", options.json)
    text = cpu_report.text_of(results)
    with open(options.markdown, "w") as file:
        file.write(text)
    return text


def measure_all(options):
    known = jobs(options)
    chosen = options.rows.split(",") if options.rows else list(known)
    if unknown := set(chosen) - set(known):
        raise SystemExit(f"--rows: there is no {', '.join(sorted(unknown))}; "
                         f"there are {', '.join(known)}")
    os.makedirs(options.work, exist_ok=True)
    options.profile = profile_of(options)
    rows, text = load_results(options), ""
    for name in chosen:
        if name in rows and not options.again:
            continue
        start = time.monotonic()
        rows[name] = known[name]()
        text = save_results(options, rows)
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr,
              flush=True)
    print(text or save_results(options, rows))
    found = [why for name in chosen for why in failures(rows[name])]
    for why in found:
        print(f"FAIL {why}")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--tools", default=ours.TOOLS)
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    parser.add_argument("--json", default="")
    parser.add_argument("--markdown", default="")
    options = parser.parse_args()
    ours.TOOLS = os.path.abspath(options.tools)
    with tempfile.TemporaryDirectory() as scratch:
        if options.fast:
            options.work = scratch
        options.json = options.json or os.path.join(options.work, "cpu.json")
        options.markdown = (options.markdown
                            or os.path.join(options.work, "cpu.md"))
        return measure_all(options)


if __name__ == "__main__":
    sys.exit(main())
