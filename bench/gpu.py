# SPDX-License-Identifier: MIT

"""Our figures on a GPU beside their targets, in parts of under 9 minutes.

    gpu.sh --prepare DIR [--tools build/bin] [--cuda-arch 90]
           [--cuda-compiler nvcc] [--shapes FILE]
    gpu.sh --bundle DIR [--part P,...] [--out FILE] [--limit SECONDS]
           [--peer-flag F]...

--prepare runs where LLVM and a CUDA compiler are, and needs no GPU: it fills
DIR with all that the other command needs beside the repository: programs and
their libraries, and every module compiled for one architecture.

--bundle runs where a GPU, its driver and cuBLASLt are. Weights are random, of
the real shapes, written to $TMPDIR on the spot and kept there for the next
part. Prints a table and leaves FILE, to which the next part adds its own rows.

  conformance  every CUDA kernel beside the reference
  goldens      the golden cases, f32 and bf16, with and without graphs (numpy)
  sanitizer    compute-sanitizer on a golden case and on the kernels
  g1 g2 g3     tokens per second      g4  memory beside its plan
  g7           compiling, start to first step
  peer         transformers + PEFT beside ours, in turns (where they are)

Without --part: conformance, goldens, g3, g1. What fails says so in one line
and lets the rest go on; then the exit code is 1. A target that is missed is
no failure.
"""

import argparse
import json
import os
import re
import signal
import sys

import gpu_bundle
from gpu_bundle import REPOSITORY, Failure

PARTS = ("conformance", "goldens", "sanitizer", "g1", "g2", "g3", "g4", "g7",
         "peer")
FIRST = "conformance,goldens,g3,g1"


def architecture(text):
    """90 or sm_90."""
    if not re.fullmatch(r"(sm_)?\d+", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not like 90 or sm_90")
    return text.removeprefix("sm_")


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="gpu.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prepare", metavar="DIR")
    what.add_argument("--bundle", metavar="DIR")
    parser.add_argument("--tools",
                        default=os.path.join(REPOSITORY, "build", "bin"))
    parser.add_argument("--cuda-arch", type=architecture, default="90")
    parser.add_argument("--cuda-compiler", default="nvcc")
    parser.add_argument("--shapes", default=os.path.join(
        REPOSITORY, "bench", "gpu_shapes.json"))
    parser.add_argument("--part", default=FIRST)
    parser.add_argument("--out", default="gpu-results.json")
    parser.add_argument("--limit", type=float, default=530)
    parser.add_argument("--peer-flag", action="append", default=[])
    options = parser.parse_args()
    options.part = options.part.split(",")
    if unknown := [part for part in options.part if part not in PARTS]:
        parser.error(f"unknown part '{unknown[0]}'; there are "
                     f"{', '.join(PARTS)}")
    return options


def prepare(options):
    if not os.path.exists(options.shapes):
        raise Failure(f"no file {options.shapes}")
    with open(options.shapes) as file:
        shapes = json.load(file)
    gpu_bundle.prepare(options.prepare, os.path.abspath(options.tools),
                       options.cuda_compiler, options.cuda_arch, shapes)
    return 0


def measure(options):
    from gpu_machine import Machine
    from gpu_parts import run_part
    from gpu_report import Report
    # A program that was started ends with the script.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine(options.bundle, options.limit)
    report = Report(options.out, machine)
    for part in options.part:
        run_part(part, machine, report, options)
        report.save()
    return report.finish()


def main():
    options = parse_arguments()
    try:
        return prepare(options) if options.prepare else measure(options)
    except Failure as failure:
        print(f"gpu.sh: error: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
