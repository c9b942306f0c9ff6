#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""A profile of a golden case contains every command, in order, and adds up.

    step_profile.py --tools build/bin

  commands  each command of the program except RECORD (`qlora-run --print`)
            is in the trace as often as its entry ran, on its queue, with
            its label, kernel and kind
  order     slices of a queue do not overlap. Slices of the host lie inside
            their steps, and on a CPU slices of the compute queue too
  sums      on one CPU rank, the times of the commands and of the host's work
            add up to step_time of metrics.jsonl within 5 %. The sum may lack
            another half a microsecond after each command
  table     the fractions of the compute queue add up to 1
  losses    the losses equal those of a run without a profile
  graphs    on CUDA the steps around the profile run as graphs
  alone     on CUDA no kernel is timed while one of another queue runs:
            decodes of the copy queue take their separate time, not the
            concurrent GEMM's, in every order in which streams may run

on one and two ranks, of the CPU and of the software CUDA platform.
"""

import argparse
import collections
import json
import os
import re
import sys
import tempfile

import goldens
import promises
from cuda_platform import Case, Failure, expect
from cuda_step import all_labelled

WARMUP, ACTIVE, STEPS = 2, 3, 8
FLAGS = ("--max-steps", str(STEPS), "--profile-warmup", str(WARMUP),
         "--profile-active", str(ACTIVE), "--logging-steps", "1")
QUEUES = {1: "compute", 2: "communication", 3: "copy"}
ROUNDING = 0.002  # microseconds of a trace, which has nanoseconds
CLOSE = 0.05
BETWEEN = 0.5e-6  # seconds from a command's end to the next one's start


def program(tools, module):
    """Returns entry -> commands: (number, queue, kind, label, kernel)."""
    entries = {}
    for line in promises.call(f"{tools}/qlora-run", module,
                              "--print").splitlines():
        if found := re.match(r"entry (\w+)", line):
            assert found[1] not in entries, "a case of one length"
            commands = entries.setdefault(found[1], [])
        elif found := re.match(r" +(\d+) (\w+) +(\w+) +(.*)", line):
            number, queue, kind, rest = found.groups()
            words = rest.split("  ")
            label, kernel = ((words[0], words[1].split()[0])
                             if kind == "launch" else (kind, ""))
            commands.append((int(number), queue, kind, label, kernel))
    return entries


def tracks(trace):
    """Returns (rank, track) -> slices in the order of their starts."""
    found = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    for slices in found.values():
        slices.sort(key=lambda s: (s["ts"], -s["dur"]))
    return found


def end(slice_):
    return slice_["ts"] + slice_["dur"]


def check_commands(entries, found, rank, micro_batches):
    runs = {"accumulate": ACTIVE * (micro_batches - 1),
            "accumulate_last": ACTIVE, "update": ACTIVE}
    wanted = collections.Counter()
    for entry, times in runs.items():
        for number, queue, kind, label, kernel in entries[entry]:
            if kind != "record" and times:
                wanted[entry, number, queue, label, kernel] = times
    seen = collections.Counter(
        (s["args"]["entry"], s["args"]["command"], queue, s["name"],
         s["args"].get("kernel", ""))
        for track, queue in QUEUES.items() for s in found[rank, track])
    differ = (wanted - seen) + (seen - wanted)
    kinds = {s["cat"] for track in QUEUES for s in found[rank, track]}
    has_kinds = {"attention", "head and loss", "optimizer", "collective",
                 "wait"} <= kinds and kinds & {"GEMM", "thin GEMM"}
    return expect("commands", seen and not differ and has_kinds,
                  f"{sum(seen.values())} of rank {rank}, {len(differ)} that "
                  f"differ {list(differ.items())[:3]}; kinds {sorted(kinds)}")


def check_order(found, rank, is_cuda):
    failed = []
    for track, queue in QUEUES.items():
        slices = found[rank, track]
        failed += [(queue, a["name"], b["name"])
                   for a, b in zip(slices, slices[1:])
                   if end(a) > b["ts"] + ROUNDING]
    steps = [s for s in found[rank, 0] if s["name"] == "step"]
    inside = [s for s in found[rank, 0] if s["name"] != "step"]
    if not is_cuda:
        inside += found[rank, 1]
    failed += [(s["name"], "outside its step") for s in inside
               if not any(t["ts"] <= s["ts"] + ROUNDING and
                          end(s) <= end(t) + ROUNDING for t in steps)]
    numbers = [s["args"]["step"] for s in steps]
    wanted = list(range(WARMUP + 1, WARMUP + ACTIVE + 1))
    return expect("order", not failed and numbers == wanted,
                  f"steps {numbers} of rank {rank}, {failed[:3]}")


def check_sums(found, times):
    """Compares commands and the host's work with an independent clock. Checks
    the best step: another process may run between two commands, or while a step
    is logged (metrics.jsonl counts this time in the next step). A missing
    command would be missing in all steps."""
    shares, wrong = [], []
    for step in (s for s in found[0, 0] if s["name"] == "step"):
        def inside(track, names=None):
            return sum(s["dur"] for s in found[0, track]
                       if step["ts"] <= s["ts"] < end(step)
                       and (names is None or s["name"] in names))
        known = inside(1) + inside(0, ("read and build a batch", "log",
                                       "sums over ranks"))
        commands = sum(step["ts"] <= s["ts"] < end(step) for s in found[0, 1])
        seconds = times[step["args"]["step"] - 1]
        shares.append(known / 1e6 / seconds)
        unknown = 1 - shares[-1]
        wrong.append(max(unknown - BETWEEN * commands / seconds, -unknown))
    return expect("sums", min(wrong) < CLOSE,
                  "of the steps' seconds in metrics.jsonl " +
                  ", ".join(f"{share:.1%}" for share in shares))


def check_table(trace):
    other = trace["otherData"]
    shares = sum(row["share"] for row in other["rows"]
                 if row["queue"] == "compute")
    step = other["step_seconds"]
    bad = [row for row in other["rows"] if not 0 <= row["seconds"] <= step or (
        row["kind"] in ("GEMM", "thin GEMM", "attention")
        and not (row["gflops"] > 0 and row["share_of_bound"] > 0))]
    return expect("table", other["steps"] == ACTIVE and not bad and
                  abs(shares - 1) < 1e-6,
                  f"{len(other['rows'])} rows, shares add up to {shares:.4f}")


def check_alone(found, ranks):
    """Checks the times of decodes on the copy queue. On the platform, a decode
    takes a microsecond, and so does the event after it."""
    failed, longest = [], {}
    for rank in range(ranks):
        kernels = sorted(
            ((s["ts"], end(s), queue, s["name"])
             for track, queue in QUEUES.items() for s in found[rank, track]
             if "kernel" in s["args"]))
        failed += [(a, b) for a, b in zip(kernels, kernels[1:])
                   if a[1] > b[0] + ROUNDING]
        for start, last, queue, _ in kernels:
            longest[queue] = max(longest.get(queue, 0), last - start)
    decode, other = longest.get("copy", 0), longest["compute"]
    # The platform's clock advances for collectives of other ranks, too.
    return expect("alone", not failed and 0 < decode < 10 and other > 10,
                  f"the longest kernel takes {decode:.0f} us on the copy "
                  f"queue, {other:.0f} on the compute queue; {len(failed)} "
                  f"overlap {failed[:1]}")


def check_trace(entries, trace, ranks, micro_batches, is_cuda):
    found = tracks(trace)
    ranks_found = sorted({rank for rank, _ in found})
    failed = expect("ranks", ranks_found == list(range(ranks)),
                    f"{ranks_found}")
    for rank in range(ranks):
        failed += check_commands(entries, found, rank, micro_batches)
        failed += check_order(found, rank, is_cuda)
    return failed + check_table(trace)


def read(path):
    with open(path) as file:
        return json.load(file)


def check_cpu(tools, name, ranks, work, layers=None):
    print(f"-- {name} on {ranks} CPU ranks")
    flags = ("--gpus", str(ranks), *FLAGS)
    model = promises.deepen(name, layers, work) if layers else None
    if model:
        flags += "--model-name-or-path", model, "--adapter-name-or-path", ""
    case = promises.Case(tools, name, work, model)
    case.compile()
    plain = case.train(*flags)
    path = os.path.join(work, "trace.json")
    profiled = case.train(*flags, "--profile", path)
    trace = read(path)
    settings = goldens.settings(os.path.join(promises.CASES, name))
    failed = check_trace(program(tools, case.module), trace, ranks,
                         settings["gradient_accumulation_steps"], False)
    if ranks == 1:
        with open(os.path.join(work, "out", "metrics.jsonl")) as lines:
            metrics = [json.loads(line) for line in lines]
        failed += check_sums(tracks(trace),
                             [m["step_time"] for m in metrics if "loss" in m])
    return failed + expect(
        "losses", (plain[0] == profiled[0]).all() and plain[1] == profiled[1],
        f"{len(plain[0])} steps, and the adapter")


def check_cuda(tools, name, ranks, work):
    print(f"-- {name} on {ranks} ranks of the software CUDA platform")
    case = Case(tools, name, work)
    path = os.path.join(work, "trace.json")
    cards = ",".join(["sm_90:4096"] * ranks)
    # Each entry has one graph. Measure no GEMM algorithms, because only one
    # rank would do so.
    flags = (*FLAGS, "--train-file", all_labelled(work, name),
             "--gemm-table", "heuristic")
    plain, before = case.train(*flags, ranks=ranks, devices=cards)
    losses, after = case.train(*flags, "--profile", path, ranks=ranks,
                               devices=cards)
    failed = check_trace(program(tools, case.module), read(path), ranks,
                         case.micro_batches, True)
    # The entries of the profiled steps run kernel by kernel, not as graphs.
    fewer = before["cuGraphLaunch"] - after["cuGraphLaunch"]
    wanted = ACTIVE * (case.micro_batches + 1)
    failed += expect("graphs", fewer == wanted,
                     f"{fewer} launches fewer than without a profile, of "
                     f"{wanted}")
    failed += check_alone(tracks(read(path)), ranks)
    for seed in (2, 3):
        case.train(*flags, "--profile", path, ranks=ranks, devices=cards,
                   seed=seed)
        failed += check_alone(tracks(read(path)), ranks)
    return failed + expect("losses", losses == plain, f"{len(losses)} steps")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    checks = (lambda work: check_cpu(tools, "llama-nf4", 1, work, 8),
              lambda work: check_cpu(tools, "qwen3-ranks", 2, work),
              lambda work: check_cuda(tools, "llama-nf4", 1, work),
              lambda work: check_cuda(tools, "qwen3-ranks", 2, work))
    failed = 0
    for check in checks:
        with tempfile.TemporaryDirectory() as work:
            try:
                failed += check(work)
            except (AssertionError, Failure) as failure:
                print(f"FAIL {failure}")
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
