# SPDX-License-Identifier: MIT

"""The parts of gpu.sh. Each has a wall limit of its own and reports rows; a
failure ends its part, or its run, and no other.
"""

import importlib.util
import json
import os
import re
import statistics
import sys
import tempfile
import time

from gpu_bundle import GOLDENS, REPOSITORY, Failure
from gpu_training import lora_rank, train

GOLDENS_PY = os.path.join(REPOSITORY, "tests", "e2e", "goldens.py")
PEER_PY = os.path.join(REPOSITORY, "bench", "peer_gpu.py")
# Seconds, at most; gpu.sh's own limit comes on top.
LIMITS = {"conformance": 200, "goldens": 300}
LIMIT = 520
# Of one program under compute-sanitizer, so that one leaves time for others.
SANITIZED_LIMIT = 150
# What a table shows of a training run, and how it says it.
TITLES = {"tokens_per_second": "tokens/s", "tflops": "useful TFLOP/s",
          "planned_gib": "plan, GiB", "measured_gib": "measured, GiB",
          "measured_over_planned": "measured / plan",
          "compile_seconds": "compile, cold, s",
          "cached_compile_seconds": "compile, cached, s",
          "start_to_first_loss_seconds": "start to first loss, s",
          "first_step_over_steady": "first step / steady step"}
SPEED = ("tokens_per_second", "tflops", "measured_gib", "planned_gib",
         "first_step_over_steady")
SHOWN = {"g1": SPEED, "g2": SPEED, "g3": SPEED,
         "g4": ("planned_gib", "measured_gib", "measured_over_planned",
                "tokens_per_second"),
         "g7": ("compile_seconds", "cached_compile_seconds",
                "start_to_first_loss_seconds", "first_step_over_steady")}


class Clock:
    """What is left of a part."""

    def __init__(self, part, machine):
        seconds = min(LIMITS.get(part, LIMIT), machine.left())
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()


def runs_of(machine, part):
    return [(number, run) for number, run in enumerate(machine.shapes["runs"])
            if run["part"] == part]


def run_part(part, machine, report, options):
    clock = Clock(part, machine)
    if clock.left() < 5:
        report.fail(part, "", "no time is left; run it on its own with "
                    f"--part {part}")
        return
    try:
        PARTS.get(part, training)(part, machine, report, clock, options)
    except Failure as failure:
        report.fail(part, "", str(failure))


# Right or wrong


def conformance(part, machine, report, clock, options):
    with tempfile.TemporaryDirectory(dir=machine.work) as work:
        path = os.path.join(work, "tests.json")
        done = machine.run(
            [machine.program("KernelTests"),
             f"--gtest_filter={machine.shapes['conformance']}",
             f"--gtest_output=json:{path}"], clock.left(),
            {**machine.environment, "QLORA_CUDA_IMAGES":
             os.path.join(machine.folder, "cubins")})
        if not os.path.exists(path):
            raise Failure(done.failure() or "KernelTests wrote no report")
        with open(path) as file:
            tests = [test for suite in json.load(file)["testsuites"]
                     for test in suite["testsuite"]]
    bad = [f"{test['classname']}.{test['name']}" for test in tests
           if test["result"] == "SKIPPED" or "failures" in test]
    good = len(tests) - len(bad)
    report.add(part, "KernelTests", f"passed, of {len(tests)}", good,
               verdict="failed" if bad or not good or done.code else
               "passed", note=", ".join(bad[:10]))


def golden_modes():
    """Title and flags of each way in which the cases are trained."""
    for compute in ("f32", "bf16"):
        for graphs in (True, False):
            yield (f"{compute}, {'graphs' if graphs else 'kernel by kernel'}",
                   (["--bf16"] if compute == "bf16" else [])
                   + ([] if graphs else ["--run-flag=--cuda-graphs=false"]))


def goldens(part, machine, report, clock, options):
    if not importlib.util.find_spec("numpy"):
        report.skip(part, "", f"numpy is not installed for {sys.executable}")
        return
    for title, flags in golden_modes():
        done = machine.run(
            [sys.executable, GOLDENS_PY, "--tools",
             os.path.join(machine.folder, "bin"), "--target", "cuda",
             "--modules", os.path.join(machine.folder, "goldens"),
             "--library-path", machine.environment["LD_LIBRARY_PATH"],
             "--ranks", "1", *flags, *machine.shapes["goldens"]],
            clock.left(), os.environ)
        cases = re.findall(r"^(ok  |FAIL) ([\w.-]+):(.*)$", done.text, re.M)
        bad = [f"{name}:{rest}" for verdict, name, rest in cases
               if verdict == "FAIL"]
        failure = done.failure()
        if failure and not bad:
            bad = [failure]
        report.add(part, title, f"passed, of {len(machine.shapes['goldens'])}",
                   sum(verdict != "FAIL" for verdict, _, _ in cases),
                   verdict="failed" if bad else "passed",
                   note="; ".join(bad)[:400])


SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")


def sanitized_programs(machine, out):
    """Title, tools and command of what compute-sanitizer watches."""
    wanted = machine.shapes["sanitized"]
    case = os.path.join(GOLDENS, wanted["golden"], "train.yaml")
    for suffix in ("", "-bf16"):
        module = os.path.join(machine.folder, "goldens",
                              f"{wanted['golden']}{suffix}.so")
        yield (wanted["golden"] + suffix, ("memcheck", "racecheck",
                                           "initcheck"),
               [machine.program("qlora-run"), module, "--config", case,
                "--compute-dtype", "bfloat16" if suffix else "float32",
                "--max-steps", str(wanted["steps"]), "--output-dir", out,
                "--overwrite-output-dir"])
    yield ("KernelTests", ("memcheck",),
           [machine.program("KernelTests"),
            f"--gtest_filter={wanted['tests']}"])


def sanitizer(part, machine, report, clock, options):
    program = machine.find_tool("compute-sanitizer")
    if not program:
        report.skip(part, "", "compute-sanitizer is not installed")
        return
    environment = {**machine.environment, "QLORA_CUDA_IMAGES":
                   os.path.join(machine.folder, "cubins")}
    with tempfile.TemporaryDirectory(dir=machine.work) as out:
        for title, tools, command in sanitized_programs(machine, out):
            for tool in tools:
                done = machine.run(
                    [program, "--tool", tool, "--error-exitcode", "99",
                     "--target-processes", "all", *command],
                    min(clock.left(), SANITIZED_LIMIT), environment)
                said = SUMMARY.findall(done.text)
                failure = done.failure() or (
                    None if said else "it printed no summary")
                report.add(part, f"{tool} {title}", "summary",
                           said[-1] if said else None,
                           verdict="failed" if failure else "passed",
                           note=failure or "")


# Figures


def show(report, part, run, figures, bundle):
    """A run that was cut short meets no target."""
    before = (f"by --prepare, {bundle['build_cores']} cores, load "
              f"{bundle['build_load']}")
    is_whole = figures["steps"] == run["steps"]
    for name in SHOWN[part]:
        if figures.get(name) is not None:
            target = run["targets"].get(name) if is_whole else None
            report.add(part, run["name"], TITLES[name], figures[name], target,
                       note=before if "compile" in name else "")
    for name, value in figures["beside_the_plan"].items():
        report.add(part, run["name"], name, value, note="beside the plan")
    if not is_whole:
        report.fail(part, run["name"], f"only {figures['steps']} of "
                    f"{run['steps']} steps in the time")


def training(part, machine, report, clock, options):
    """Each run gets an equal share of the time that is left."""
    runs = runs_of(machine, part)
    if not runs:
        raise Failure("the bundle has no run for this part")
    for place, (number, run) in enumerate(runs):
        try:
            figures = train(machine, run, number,
                            clock.left() / (len(runs) - place))
        except Failure as failure:
            report.fail(part, run["name"], str(failure))
            continue
        report.runs[f"{part} {run['name']}"] = figures
        show(report, part, run, figures, machine.bundle)


def peer_command(machine, run, seconds, options):
    folder, _ = machine.model(run["model"], seconds)
    config = os.path.join(folder, "config.json")
    return [sys.executable, PEER_PY, config, "--batch", str(run["batch"]),
            "--length", str(run["length"]), "--accumulation",
            str(run["accumulation"]), "--rank", str(lora_rank(machine, run)),
            "--warm-up", str(run["warm_up"]), "--steps", str(run["steps"]),
            *options.peer_flag]


def peer_turn(machine, run, seconds, options):
    done = machine.run(peer_command(machine, run, seconds, options),
                       seconds, os.environ)
    if failure := done.failure():
        raise Failure(f"peer: {failure}")
    return done.result()


def take_turns(machine, run, number, clock, options):
    """Ours and the peer's figures of every round."""
    ours, theirs = [], []
    for place in range(run["rounds"]):
        left = 2 * (run["rounds"] - place)
        ours.append(train(machine, run, number, clock.left() / left))
        theirs.append(peer_turn(machine, run, clock.left() / (left - 1),
                                options))
    return ours, theirs


def peer(part, machine, report, clock, options):
    missing = [name for name in ("torch", "transformers", "peft")
               if not importlib.util.find_spec(name)]
    if missing:
        report.skip(part, "", f"{sys.executable} has no "
                    f"{', '.join(missing)}")
        return
    for number, run in runs_of(machine, part):
        ours, theirs = take_turns(machine, run, number, clock, options)
        name = run["name"]
        rates = [statistics.median(turn["tokens_per_second"]
                                   for turn in turns)
                 for turns in (ours, theirs)]
        report.add(part, name, "ours, tokens/s", rates[0])
        report.add(part, name, "ours, GiB", ours[0]["measured_gib"])
        report.add(part, name, "peer, tokens/s", rates[1],
                   note=theirs[0]["what"])
        report.add(part, name, "peer, GiB", theirs[0]["peak_gib"])
        report.add(part, name, "ours / peer", rates[0] / rates[1])
        report.runs[f"{part} {name}"] = {"ours": ours, "peer": theirs}


PARTS = {"conformance": conformance, "goldens": goldens,
         "sanitizer": sanitizer, "peer": peer}
