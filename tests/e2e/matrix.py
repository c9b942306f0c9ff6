#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Every golden case and every family on every layout, on CPU ranks and on the
software CUDA platform: the long form of what the suite has a part of.

    matrix.py --tools build/bin [--target cpu|cuda] [--jobs 2] [LAYOUT ...]

The golden cases (goldens.py) run on the layouts below. A layout that a case cannot
have is skipped by the compiler's own refusal: heads, blocks or lines that it does
not divide, fewer layers than stages, no experts, steps of too few micro-batches.
The families (layouts.py), whose models are made so that four ranks divide them,
run on the layouts of its axes, up to 8 ranks. Prints a line for each layout and
fails where any case does. Hours on two cores.

A case on an edge says nothing about a layout: EDGES has them, with what stands
for them there. They are trained and told, and do not count.
"""

import argparse
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MESH = "--compile-flag=--parallel={}".format
# Names of layouts, and what goldens.py is told.
GOLDENS = {
    "one rank": ("--ranks", "1"),
    "dp 2": ("--ranks", "2"),
    "dp 4": ("--ranks", "4"),
    "fsdp": ("--ranks", "2", MESH("fsdp=2")),
    "dp x fsdp": ("--ranks", "4", MESH("fsdp=2")),
    "zero1": ("--ranks", "2", MESH("zero1=2")),
    "zero2": ("--ranks", "2", MESH("zero2=2")),
    "tp": ("--parallel", "tp=2"),
    "tp by tokens": ("--parallel", "tp=2",
                     "--compile-flag=--sequence-parallel=true"),
    "tp x dp": ("--ranks", "2", "--parallel", "tp=2"),
    "cp": ("--parallel", "cp=2"),
    "cp 8": ("--parallel", "cp=8"),
    "ep": ("--ranks", "2", MESH("ep=2")),
    "pp": ("--parallel", "pp=2"),
    "pp of one chunk": ("--parallel", "pp=2",
                        "--compile-flag=--num-micro-batches=1"),
    "pp x dp": ("--ranks", "2", "--parallel", "pp=2"),
    "pp of two parts": ("--parallel", "pp=2", "--compile-flag="
                        "--num-virtual-stages-per-pipeline-rank=2"),
    "tp x pp": ("--parallel", "tp=2,pp=2"),
    "tp x cp": ("--parallel", "tp=2,cp=2"),
    "tp x cp x fsdp": ("--parallel", "fsdp=2,tp=2,cp=2"),
    "fsdp x tp": ("--ranks", "2", "--parallel", "fsdp=2,tp=2"),
    "fsdp x pp": ("--ranks", "2", "--parallel", "fsdp=2,pp=2"),
    "zero2 x tp": ("--ranks", "2", "--parallel", "zero2=2,tp=2"),
    "zero2 x tp x pp": ("--ranks", "2", "--parallel", "zero2=2,tp=2,pp=2"),
    "zero2 x pp": ("--ranks", "2", "--parallel", "zero2=2,pp=2"),
    "cp x pp": ("--parallel", "cp=2,pp=2"),
}
# In the reference a value is 2e-6 from where its clamp cuts the gradient, at step
# 6 (found with Inputs/edges.py); its own runs with noise of 3e-6 in the first
# adapter leave it by 7e-3, as the rounding of some layouts does: of two stages and
# two ranks that share products or lines on a CPU, of two stages on software CUDA.
# `gptoss` is a case of the same family without such a value.
EDGES = {"gptoss-mxfp4": "gptoss"}
FAMILIES = ("tp", "cp", "ep", "pp")  # axes of layouts.py


def lines_of(script, *arguments):
    done = subprocess.run([sys.executable, os.path.join(HERE, script),
                           *arguments], capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def are_edges(layout, told, lines):
    """Whether only cases on an edge failed, of more ranks than one, and those that
    stand for them did not."""
    cases = [line.split()[1].rstrip(":") for line in told]
    return bool(cases) and layout != "one rank" and all(
        case in EDGES and any(line.startswith(f"ok   {EDGES[case]}:")
                              for line in lines)
        for case in cases)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--target", choices=["cpu", "cuda"], action="append")
    parser.add_argument("--jobs", default="2")
    parser.add_argument("layouts", nargs="*")
    options = parser.parse_args()
    rows = {name: ("goldens.py", *arguments, "--jobs", options.jobs)
            for name, arguments in GOLDENS.items()}
    rows |= {f"families {axis}": ("layouts.py", "--axis", axis)
             for axis in FAMILIES}
    for name in options.layouts:
        if name not in rows:
            parser.error(f"there is no layout '{name}'; there are: "
                         f"{', '.join(rows)}")
    failed = False
    for target in options.target or ("cpu", "cuda"):
        for name in options.layouts or rows:
            code, lines = lines_of(*rows[name], "--tools", options.tools,
                                   "--target", target)
            count = {kind: sum(re.match(f"{kind} ", line) is not None
                               for line in lines)
                     for kind in ("ok", "skip", "FAIL")}
            print(f"{target:5} {name:16} {count['ok']:3} equal, "
                  f"{count['skip']:3} cannot have it, "
                  f"{'failed' if code else 'none failed'}", flush=True)
            # Of goldens.py the cases; of layouts.py, which ends there, the end.
            told = [line for line in lines if line.startswith("FAIL")]
            if code:
                print("\n".join(told or lines[-12:]), flush=True)
            failed |= code != 0 and not are_edges(name, told, lines)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
