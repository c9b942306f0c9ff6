#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Compares the rematerialization choice with the optimum, and measures the
bytes that packing the arenas loses.

    recompute_gap.py --tools build/bin [--budgets 21]

For small models of several families and both targets, the compiler plans the
same step for budgets from everything kept down to the lowest possible peak.
Each plan's peak and time are recounted (recompute_model.py), and its time is
compared with the optimum over all subsets of values that could be recomputed
once, from OR-Tools CP-SAT: one worker, bounded by deterministic time. If
optimality is not proven, the proven bound is used instead. The planner may
also recompute a value in several blocks, and so be below the optimum.

Prints, per budget, both times and the gap, and the finished program's arena
bytes beyond its live bytes. Fails if a plan is more than 5 % above the
optimum, if a smaller budget has a faster plan, or if fewer than 20 budgets of
a model have a plan.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

try:
    from ortools.sat.python import cp_model
except ImportError:
    print("skip recompute_gap.py: no ortools; scripts/install.sh installs it")
    sys.exit(0)

from recompute_model import ALIGNMENT, SECOND, Exact, Problem

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                     "Inputs", "goldens")
# Models: golden case, target, and odd sizes of batch and length.
MODELS = (("mistral-window", "cpu", 3, 61), ("qwen2-nf4", "cuda", 5, 37))
LEAST_PLANS, LARGEST_GAP = 20, 0.05
DETERMINISTIC_SECONDS = 20
UNPACKED, PACKED = "activation_live_bytes", "activation_bytes"


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-1500:]}")
    return done.stdout


class Model:
    """A model, compiled up to its training step, and planned for many
    budgets."""

    def __init__(self, tools, folder, case, target, batch, length):
        self.tools, self.target = tools, target
        model, self.step = (os.path.join(folder, f"{case}.{name}.mlir")
                            for name in ("model", "step"))
        call(f"{tools}/qlora-import", os.path.join(CASES, case, "model"), "-o",
             model)
        with open(self.step, "w") as file:
            file.write(call(
                f"{tools}/qloracc", model, "--emit=step", "--target", target,
                "--config", os.path.join(CASES, case, "train.yaml"),
                "--per-device-train-batch-size", str(batch),
                "--max-length", str(length)))

    def plan(self, budget):
        """Plans a budget in bytes (0: no limit). Returns the choice and the
        plan of the arenas."""
        target = f"target={self.target}"
        text = call(f"{self.tools}/qlora-opt", self.step,
                    f"--rematerialize=budget={budget} problem {target}",
                    f"--plan-dequant={target}", "--fuse-rows",
                    "--bucket-gradients", "--lower-to-program",
                    f"--select-kernels={target}", f"--assign-queues={target}",
                    "--plan-memory", "--print-plan", "-o", os.devnull)
        plan = json.loads(text)
        entries = [entry for entry in plan["entries"]
                   if entry["kind"].startswith("accumulate")]
        return (plan["rematerialize"]["steps"][0],
                max(entries, key=lambda entry: entry[PACKED]))


def counted(problem, step):
    """Returns the ops that the plan recomputes before each op, after a check of
    the planner's own figures."""
    before = [op["before"] for op in step["ops"]]
    assert problem.peak(before) == step["estimated_peak"], (
        f"the planner counts {step['estimated_peak']} bytes at its peak, "
        f"{problem.peak(before)} are alive")
    seconds = step["recompute_seconds"]
    assert abs(problem.seconds(before) - seconds) <= 1e-9 * seconds
    return before


def solver():
    result = cp_model.CpSolver()
    result.parameters.num_workers = 1
    result.parameters.random_seed = 1
    result.parameters.linearization_level = 2
    result.parameters.cp_model_probing_level = 0
    result.parameters.max_presolve_iterations = 1
    result.parameters.symmetry_level = 0
    result.parameters.max_deterministic_time = DETERMINISTIC_SECONDS
    return result


def lowest_peak(problem):
    """Returns the bytes of the lowest peak, after recounting a plan that has
    it."""
    exact = Exact(problem)
    exact.model.minimize(exact.peak)
    found = solver()
    status = found.solve(exact.model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bytes_ = round(found.objective_value) * ALIGNMENT
    assert problem.peak(problem.clones(exact.chosen(found))) <= bytes_
    return bytes_


class Optimum:
    """The minimum seconds for decreasing budgets."""

    def __init__(self, problem):
        self.problem, self.exact = problem, Exact(problem)
        self.exact.model.minimize(self.exact.time)
        self.within = self.exact.model.add(self.exact.peak <= 0)
        self.above = self.exact.model.add(self.exact.time >= 0)

    def solve(self, budget, before):
        """Returns the minimum of seconds, and whether it is optimal or only a
        bound. `before`: the planner's choice, at which the search begins."""
        exact, problem = self.exact, self.problem
        self.within.proto.linear.domain[1] = budget // ALIGNMENT
        exact.model.clear_hints()
        for head, dropped in exact.dropped.items():
            exact.model.add_hint(dropped, bool(before[head]))
        found = solver()
        status = found.solve(exact.model)
        assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), (
            f"{found.status_name(status)} for {budget} bytes")
        # A smaller budget needs at least as many seconds as this budget.
        self.above.proto.linear.domain[0] = int(
            found.best_objective_bound)
        clones = problem.clones(exact.chosen(found))
        seconds = problem.seconds(clones)
        assert problem.peak(clones) <= budget
        # The objective rounds the time of each op.
        assert abs(seconds * SECOND - found.objective_value) <= problem.count
        if status == cp_model.OPTIMAL:
            return seconds, True
        return found.best_objective_bound / SECOND, False


def compare(model, count):
    """Prints the table of a model. Returns the errors."""
    step, _ = model.plan(0)
    problem = Problem(step)
    counted(problem, step)
    high, low = step["estimated_peak"], lowest_peak(problem)
    optimum, plans, failed, slowest = Optimum(problem), 0, [], 0
    print("     budget   planned us   optimal us    gap    packing")
    for i in range(count):
        budget = high - (high - low) * i // (count - 1)
        budget -= budget % ALIGNMENT
        step, arena = model.plan(budget)
        best, proven = optimum.solve(budget, counted(problem, step))
        if step["estimated_peak"] > budget:
            print(f"{budget:11}         none {best * 1e6:12.2f}")
            continue
        seconds = step["recompute_seconds"]
        gap = seconds / best - 1 if best else float(seconds > 0)
        gap = round(gap, 6) + 0.0  # no -0.0%
        packing = arena[PACKED] / arena[UNPACKED] - 1
        plans += 1
        print(f"{budget:11} {seconds * 1e6:12.2f} {best * 1e6:12.2f} "
              f"{gap:6.1%} {packing:10.2%}{'' if proven else '  (bound)'}",
              flush=True)
        if gap > LARGEST_GAP:
            failed.append(f"{gap:.1%} above the optimum at {budget} bytes")
        if seconds < slowest:
            failed.append(f"{budget} bytes are faster than more")
        slowest = max(slowest, seconds)
    if plans < LEAST_PLANS:
        failed.append(f"plans for {plans} budgets of {count}")
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--budgets", type=int, default=21)
    options = parser.parse_args()
    tools = os.path.abspath(options.tools)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for case, target, batch, length in MODELS:
            start = time.process_time()
            print(f"{case}, {target}, {batch} x {length}")
            model = Model(tools, folder, case, target, batch, length)
            failed = compare(model, options.budgets)
            for reason in failed:
                print(f"FAIL {case}, {target}: {reason}")
            failures += bool(failed)
            if not failed:
                print(f"ok   {case}, {target}: within {LARGEST_GAP:.0%}, "
                      f"{time.process_time() - start:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
