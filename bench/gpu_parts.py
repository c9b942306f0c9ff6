# SPDX-License-Identifier: MIT

"""Parts of gpu.sh. A part consists of one unit, or of one unit per run. A unit
has a time limit and reports rows. Its failure does not end other units.
"""

import importlib.util
import json
import math
import os
import re
import statistics
import sys
import tempfile
import time

import gpu_gates
from gpu_bundle import GOLDENS, REPOSITORY, Failure
from gpu_machine import GRACE_SECONDS
from gpu_nccl import nccl
from gpu_training import lora_rank, train

GOLDENS_PY = os.path.join(REPOSITORY, "tests", "e2e", "goldens.py")
PEER_PY = os.path.join(REPOSITORY, "bench", "baseline_gpu.py")
# Time limits of parts, in seconds. LIMIT applies to all other parts.
LIMITS = {"micro": 180, "conformance": 200, "goldens": 300, "nccl": 150}
LIMIT = 520
# Remaining seconds that the start of a unit requires.
LEAST = GRACE_SECONDS + 10
# Time limit in seconds for one program under compute-sanitizer.
SANITIZED_LIMIT = 150
# Titles of a training run's figures.
TITLES = {"tokens_per_second": "tokens/s", "tflops": "useful TFLOP/s",
          "planned_gib": "plan, GiB", "measured_gib": "measured, GiB",
          "beside_gib": "context, code, graphs, GiB",
          "compile_seconds": "compile, cold, s",
          "cached_compile_seconds": "compile, cached, s",
          "start_to_first_loss_seconds": "start to first loss, s",
          "first_step_over_steady": "first step / steady step"}
SPEED = ("tokens_per_second", "tflops", "measured_gib", "planned_gib",
         "first_step_over_steady")
SHOWN = {"g1": SPEED, "g2": SPEED, "g3": SPEED,
         "g4": ("planned_gib", "measured_gib", "beside_gib",
                "tokens_per_second"),
         "g7": ("compile_seconds", "cached_compile_seconds",
                "start_to_first_loss_seconds", "first_step_over_steady")}


class Unit:
    """A part of gpu.sh, or one run of a part. `number` is the run's index in
    the bundle, `first` the N of PART/N."""

    def __init__(self, part, name="", number=None, run=None, first=None):
        self.part, self.number, self.run, self.first = part, number, run, first
        self.name = f"{part} {name}" if name else part
        if first and not name:
            self.name += f"/{first}"


def units_of(item, shapes):
    """Returns the units of an --part item, PART or PART/N. Returns no unit if
    the bundle has no run for the part."""
    part, _, first = item.partition("/")
    first = int(first) if first else None
    if part == "goldens" and first and first >= len(shapes["goldens"]):
        first = None
    if part in PARTS and part not in ("profile", "peer"):
        return [Unit(part, first=first)]
    runs = [(number, run) for number, run in enumerate(shapes["runs"])
            if run["part"] == part or part == "profile" and run.get("profile")]
    return [Unit(part, run["name"], number, run)
            for number, run in runs[:first]]


class Clock:
    """The deadline of a unit. The unit and `others` more units of its part get
    equal shares of the remaining time."""

    def __init__(self, part, machine, others):
        seconds = min(LIMITS.get(part, LIMIT), machine.left() / (1 + others))
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()


def has_time(machine):
    return machine.left() > LEAST


def run_unit(unit, others, machine, report, options):
    """Runs a unit. Marks it as finished, even after an error or its own time
    limit. If the time of the whole call is over, does not mark it, and the next
    call repeats the unit."""
    report.begin(unit.name)
    case = unit.run["name"] if unit.run else ""
    try:
        PARTS.get(unit.part, training)(
            unit, machine, report, Clock(unit.part, machine, others), options)
    except Failure as failure:
        report.fail(unit.part, case, str(failure))
    if has_time(machine):
        report.finish_unit()


# Kernels


def micro(unit, machine, report, clock, options):
    """Runs gpu-micro. Reports each row when gpu-micro prints it."""
    gates, lines = report.gates(), []
    report.runs[unit.name] = {"lines": lines}

    def on_line(text):
        if text.startswith("{"):
            lines.append(json.loads(text))
            gpu_gates.add_line(report, gates, lines[-1])
    wanted = machine.shapes["micro"]["runs"]
    modules = [machine.module(number)
               for number, run in enumerate(machine.shapes["runs"])
               if f"{run['part']} {run['name']}" in wanted
               and "not_planned" not in machine.bundle["runs"][number]]
    done = machine.micro(modules, clock.left(), on_line)
    gpu_gates.add_lora(report, gates, lines)
    if failure := done.failure():
        raise Failure(failure)


# Correctness


def conformance(unit, machine, report, clock, options):
    part = unit.part
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
    report.runs[unit.name] = {"failures": {
        f"{test['classname']}.{test['name']}": [
            failure["failure"][:2000] for failure in test["failures"][:5]]
        for test in tests if "failures" in test}}
    good = len(tests) - len(bad)
    report.add(part, "KernelTests", f"passed, of {len(tests)}", good,
               verdict="failed" if bad or not good or done.code else
               "passed", note=", ".join(bad[:10]))


def golden_modes():
    """Yields title and goldens.py flags of each mode: f32 or bf16, with or
    without graphs."""
    for compute in ("f32", "bf16"):
        for graphs in (True, False):
            yield (f"{compute}, {'graphs' if graphs else 'kernel by kernel'}",
                   (["--bf16"] if compute == "bf16" else [])
                   + ([] if graphs else ["--run-flag=--cuda-graphs=false"]))


def goldens(unit, machine, report, clock, options):
    part, names = unit.part, machine.shapes["goldens"][:unit.first]
    if not importlib.util.find_spec("numpy"):
        report.skip(part, "", f"numpy is not installed for {sys.executable}")
        return
    for title, flags in golden_modes():
        done = machine.run(
            [sys.executable, GOLDENS_PY, "--tools",
             os.path.join(machine.folder, "bin"), "--target", "cuda",
             "--modules", os.path.join(machine.folder, "goldens"),
             "--library-path", machine.environment["LD_LIBRARY_PATH"],
             "--ranks", "1", "--jobs", str(min(8, os.cpu_count())), *flags,
             *names],
            clock.left(), os.environ)
        cases = re.findall(r"^(ok  |FAIL) ([\w.-]+):(.*)$", done.text, re.M)
        bad = [f"{name}:{rest}" for verdict, name, rest in cases
               if verdict == "FAIL"]
        failure = done.failure()
        if failure and not bad:
            bad = [failure]
        report.add(part, title, f"passed, of {len(names)}",
                   sum(verdict != "FAIL" for verdict, _, _ in cases),
                   verdict="failed" if bad else "passed",
                   note="; ".join(bad)[:400])


# qlora-run searches each device image for a kernel in turn, so failed look-ups
# are normal.
SANITIZER_FLAGS = {"memcheck": ["--report-api-errors", "no"]}
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")


def sanitized_programs(machine, out):
    """Yields title, sanitizer tools and command of each program that runs under
    compute-sanitizer."""
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


def sanitizer(unit, machine, report, clock, options):
    part, program = unit.part, machine.find_tool("compute-sanitizer")
    if not program:
        report.skip(part, "", "compute-sanitizer is not installed")
        return
    environment = {**machine.environment, "QLORA_CUDA_IMAGES":
                   os.path.join(machine.folder, "cubins")}
    with tempfile.TemporaryDirectory(dir=machine.work) as out:
        for title, tools, command in sanitized_programs(machine, out):
            for tool in tools:
                done = machine.run(
                    [program, "--tool", tool, *SANITIZER_FLAGS.get(tool, []),
                     "--error-exitcode", "99", "--target-processes", "all",
                     *command],
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
    """Reports a run's figures, compared with targets if all steps were done."""
    before = (f"by --prepare, {bundle['build_cores']} cores, load "
              f"{bundle['build_load']}")
    is_whole = figures["steps"] == run["steps"]
    for name in SHOWN[part]:
        if figures.get(name) is not None:
            target = run["targets"].get(name) if is_whole else None
            report.add(part, run["name"], TITLES[name], figures[name], target,
                       note=before if "compile" in name else "")
    for name, value in figures["outside_the_plan"].items():
        report.add(part, run["name"], name, value, note="outside the plan")
    if not is_whole:
        report.fail(part, run["name"], f"only {figures['steps']} of "
                    f"{run['steps']} steps in the time")


def show_profile(report, run, figures):
    """Reports the time of each part of a profiled step, which runs kernel by
    kernel, with the predicted time (a range if there is a `low` figure)."""
    profile, prediction = figures["profile"], figures["prediction"]
    low = prediction.get("low") or {}

    def add(what, seconds, predict, note=""):
        said = [f"{predict(p) * 1e3:.4g}" for p in (prediction, low) if p]
        report.add("profile", run["name"], f"{what}, ms", seconds * 1e3,
                   note=f"predicted {' to '.join(said)}{note}")
    add("step, profiled", profile["step_seconds"], lambda p: p["step_seconds"],
        f"; in a graph {figures['step_seconds'] * 1e3:.4g}")
    for row in profile["rows"]:
        if row["kind"] in prediction["parts"]:
            kernels = [name.removeprefix(row["kind"]).strip()
                       for name in profile["kernels"]
                       if name.startswith(f"{row['kind']} ")]
            add(row["kind"], row["seconds"],
                lambda p, kind=row["kind"]: p["parts"][kind]["seconds"]
                if kind in p.get("parts", {}) else math.nan,
                f"; {', '.join(kernels[:4])}")


def training(unit, machine, report, clock, options):
    """Trains one run, with a profile if gpu_shapes.json requests it."""
    part, run = unit.part, unit.run
    kept = None
    if run.get("profile"):
        kept = os.path.join(os.path.dirname(options.out),
                            f"profile-{run['name']}.json.gz".replace(" ", "-"))
    if part == "profile":
        run = {**run, "warm_up": 1, "steps": 1}
    figures = train(machine, run, unit.number, clock.left(), kept)
    report.runs[unit.name] = figures
    if part != "profile":
        show(report, part, run, figures, machine.bundle)
    if figures["profile"]:
        show_profile(report, run, figures)


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
    """Runs qlora-run and the peer in turns. Returns two lists of figures, with
    one entry per round."""
    ours, theirs = [], []
    for place in range(run["rounds"]):
        left = 2 * (run["rounds"] - place)
        ours.append(train(machine, run, number, clock.left() / left))
        theirs.append(peer_turn(machine, run, clock.left() / (left - 1),
                                options))
    return ours, theirs


def peer(unit, machine, report, clock, options):
    missing = [name for name in ("torch", "transformers", "peft")
               if not importlib.util.find_spec(name)]
    if missing:
        report.skip("peer", "", f"{sys.executable} has no "
                    f"{', '.join(missing)}")
        return
    ours, theirs = take_turns(machine, unit.run, unit.number, clock, options)
    report.runs[unit.name] = {"ours": ours, "peer": theirs}
    rates = [statistics.median(turn["tokens_per_second"] for turn in turns)
             for turns in (ours, theirs)]
    for what, value in (("ours, tokens/s", rates[0]),
                        ("ours, GiB", ours[0]["measured_gib"]),
                        ("peer, tokens/s", rates[1]),
                        ("peer, GiB", theirs[0]["peak_gib"]),
                        ("ours / peer", rates[0] / rates[1])):
        report.add("peer", unit.run["name"], what, value,
                   note=theirs[0]["what"] if what == "peer, tokens/s" else "")


PARTS = {"micro": micro, "conformance": conformance, "goldens": goldens,
         "nccl": nccl, "sanitizer": sanitizer, "profile": training,
         "peer": peer}
