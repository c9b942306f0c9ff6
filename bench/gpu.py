# SPDX-License-Identifier: MIT

"""Measures this project on a GPU, and compares it with targets, in calls of
under 9 minutes.

    gpu.sh --prepare DIR [--tools build/bin] [--cuda-arch 90]
           [--cuda-compiler nvcc] [--shapes FILE]
    gpu.sh --bundle DIR [--part P,...] [--out FILE] [--limit SECONDS]
           [--peer-flag F]...

--prepare needs LLVM and a CUDA compiler, but no GPU. It fills DIR with what
--bundle needs in addition to the repository: programs, their libraries, and all
modules, compiled for one architecture.

--bundle needs a GPU, its driver and cuBLASLt. It writes random weights of the
real shapes to $TMPDIR and keeps them for the next part. It prints a table and
writes FILE, to which the next part adds its rows.

  micro        every launch of g1 and g3 alone, with its minimum rate
  conformance  every CUDA kernel, compared with the reference
  goldens      the golden cases, f32 and bf16, with and without graphs (numpy)
  nccl         ranks that share the GPU: a golden case on each layout, and how
               soon a rank ends after another was killed or stopped (numpy)
  sanitizer    compute-sanitizer on a golden case and on the kernels
  g1 g2 g3     tokens per second      g4  memory compared with its plan
  g7           compiling, start to first step
  profile      times of a step's parts in g1 and g3, with the prediction; also
               at the end of g1 and g3
  peer         transformers + PEFT and ours, in turns (if installed)

PART/N is the first N runs or cases of a part. Without --part, all parts run,
the most informative first, except those that FILE already has, so that the same
call continues after an interruption. FILE is written after each row, into $OUT
if that is set. A failure prints one line, and the other parts continue; the
exit code is then 1. A missed target is not a failure.
"""

import argparse
import json
import os
import re
import signal
import sys

import gpu_bundle
from gpu_bundle import REPOSITORY, Failure

PARTS = ("micro", "conformance", "goldens", "nccl", "sanitizer", "g1", "g2",
         "g3", "g4", "g7", "profile", "peer")
ORDER = ("micro,conformance,goldens/2,nccl,g1/1,g3,g1,goldens,g7,g4,g2,peer,"
         "sanitizer")


def architecture(text):
    """Returns "90" for "90" or "sm_90"."""
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
    parser.add_argument("--part")
    parser.add_argument("--out", default=os.path.join(
        os.environ.get("OUT", ""), "gpu-results.json"))
    parser.add_argument("--limit", type=float, default=530)
    parser.add_argument("--peer-flag", action="append", default=[])
    options = parser.parse_args()
    options.items = (options.part or ORDER).split(",")
    if unknown := [item for item in options.items if not re.fullmatch(
            f"({'|'.join(PARTS)})(/[1-9][0-9]*)?", item)]:
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
    from gpu_parts import has_time, run_unit, units_of
    from gpu_report import Report
    # Exit through SystemExit, so that the cleanup stops the started programs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine(options.bundle, options.limit)
    report = Report(options.out, machine)
    left = {}
    for item in options.items:
        units = units_of(item, machine.shapes)
        if options.part and not units:
            raise Failure(f"the bundle has no run for {item}")
        left.update((unit.name, unit) for unit in units
                    if options.part or unit.name not in report.finished)
    while left and has_time(machine):
        unit = left.pop(next(iter(left)))
        others = sum(unit.part == other.part for other in left.values())
        run_unit(unit, others, machine, report, options)
    return report.finish(list(left))


def main():
    options = parse_arguments()
    try:
        return prepare(options) if options.prepare else measure(options)
    except Failure as failure:
        print(f"gpu.sh: error: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
