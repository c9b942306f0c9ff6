#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Finds the branches of the runtime that only the full tier of tests takes.

    coverage.py run BUILD [--budget SECONDS] [--jobs N] [--tests REGEX]
    coverage.py report BUILD

BUILD is configured with -DQLORA_COVERAGE=ON and built. `run` runs each test of
quick and then of full, cheapest first, and stores its result, its seconds, and
the lines and branches that its processes executed in BUILD/coverage/NAME.json.
It leaves out tests that have such a file already, so that it can be stopped and
started again. A test that fails runs once more, alone. `report` prints tables
of branches, as in docs/internals/testing.md.

GCC writes counts when a process exits or calls exec. A process that is killed,
or that ends with _exit, leaves none.
"""

import argparse
import collections
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("Base", "Options", "Module", "Weights", "Ranks", "Device",
           "Checkpoint", "Session")
# Tests that do not run this build's libraries: checks of texts and packages,
# and tests that use other compilers or build trees.
LEFT_OUT = re.compile(
    r"lint|words|words-rules|sass|cuda-units|cuda-headers|one-definition|"
    r"install|wheel|asan-.*|CudaPlatformTests|HostImages")


class Places:
    """Numbers the lines and branches of the six folders. An int with one bit
    per line or branch represents a set."""

    def __init__(self, lines, branches):
        self.lines, self.branches = lines, branches
        self.line_bits = {place: 1 << i for i, place in enumerate(lines)}
        self.branch_bits = {place: 1 << i for i, place in enumerate(branches)}
        text = json.dumps([lines, branches])
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    def select(self, places, bits):
        return [place for i, place in enumerate(places) if bits >> i & 1]


def relative(file):
    """Returns the path of a source below the root if it is in the six folders,
    else None."""
    path = os.path.relpath(file, ROOT)
    parts = path.split(os.sep)
    is_ours = parts[0] == "runtime" and parts[1:2] and parts[1] in FOLDERS
    return path if is_ours else None


def decisions(branches):
    """Returns the branches of a line without those of calls. A call has a pair:
    its return, followed by the exception that it may throw."""
    following = [*branches[1:], {"throw": False}]
    return [branch for branch, after in zip(branches, following)
            if not branch["throw"] and
            not (branch["fallthrough"] and after["throw"])]


def gcov(files):
    """Runs gcov on files of notes or counts. Yields for each listed line of the
    six folders: its place, its count, and a list of the place and the count of
    each branch. The instances of a template have the same places."""
    done = subprocess.run(
        ["gcov", "--json-format", "--stdout", "--branch-probabilities",
         *files], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"gcov: {done.stderr.splitlines()[-1]}\nBuild again: counts "
                 "need the notes of the programs that ran.")
    for document in filter(None, done.stdout.splitlines()):
        for source in json.loads(document)["files"]:
            file = relative(source["file"])
            for line in source["lines"] if file else ():
                number = line["line_number"]
                branches = enumerate(decisions(line["branches"]))
                yield ((file, number), line["count"],
                       [((file, number, index), branch["count"])
                        for index, branch in branches])


class Objects:
    """The notes (.gcno) of all object files, with which counts are read."""

    def __init__(self, build):
        self.notes = glob.glob(f"{os.path.abspath(build)}/runtime/**/*.gcno",
                               recursive=True)
        if not self.notes:
            sys.exit(f"{build} has no notes: configure with QLORA_COVERAGE")
        lines, branches = set(), set()
        for place, _, of_line in gcov(self.notes):
            lines.add(place)
            branches.update(branch for branch, _ in of_line)
        self.places = Places(sorted(lines), sorted(branches))

    def executed(self, counters):
        """Returns the lines and branches that were executed, from the counts
        (.gcda) below a folder. gcov needs the notes next to the counts."""
        files = []
        for notes in self.notes:
            counts = counters + os.path.splitext(notes)[0] + ".gcda"
            if os.path.exists(counts):
                os.symlink(notes, os.path.splitext(counts)[0] + ".gcno")
                files.append(counts)
        lines, branches = set(), set()
        for place, count, of_line in gcov(files) if files else ():
            if count > 0:
                lines.add(place)
            branches.update(branch for branch, taken in of_line if taken > 0)
        places = self.places
        return (sum(places.line_bits[place] for place in lines),
                sum(places.branch_bits[place] for place in branches))


def listed_tests(build):
    """Returns the tests of quick and full: name, tier, seconds, is alone."""
    shown = json.loads(subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1"], check=True,
        stdout=subprocess.PIPE).stdout)
    tests = []
    for test in shown["tests"]:
        values = {one["name"]: one["value"] for one in test["properties"]}
        tier = (values.get("LABELS") or ["quick"])[0]
        # A test without a command is a program that is not built.
        if (tier == "soak" or LEFT_OUT.fullmatch(test["name"]) or
                "command" not in test):
            continue
        tests.append({
            "name": test["name"], "tier": tier,
            "program": os.path.basename(test["command"][0]),
            "cost": values.get("COST", 5),
            "alone": bool(values.get("RUN_SERIAL") or
                          values.get("RESOURCE_LOCK"))})
    return sorted(tests, key=lambda test: (test["tier"] != "quick",
                                           test["cost"], test["name"]))


def file_of(build, name):
    return os.path.join(build, "coverage", re.sub(r"[^\w.=-]", "_", name) +
                        ".json")


def ctest_command(build, name):
    """Returns a command that runs a test without its fixtures."""
    return ["ctest", "--test-dir", build, "-R", f"^{re.escape(name)}$",
            "--fixture-exclude-any", ".", "--output-on-failure"]


def environment(counters):
    """Returns the environment of a test whose counts go below a folder. A test
    that kills a process may leave a broken file of counts. GCC's errors about
    it must not appear in the output that tests compare."""
    return {**os.environ, "GCOV_PREFIX": counters,
            "GCOV_ERROR_FILE": os.devnull}


def measure(build, objects, test):
    """Runs a test and stores what it executed. Returns whether it passed."""
    counters = os.path.join(os.path.abspath(build), "coverage", "counters",
                            os.path.basename(file_of(build, test["name"])))
    shutil.rmtree(counters, ignore_errors=True)
    os.makedirs(counters)
    start = time.monotonic()
    done = subprocess.run(
        ctest_command(build, test["name"]), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        env=environment(counters))
    seconds = time.monotonic() - start
    lines, branches = objects.executed(counters)
    shutil.rmtree(counters)
    has_passed = done.returncode == 0
    with open(file_of(build, test["name"]), "w", encoding="utf-8") as file:
        json.dump({**test, "passed": has_passed, "seconds": round(seconds, 1),
                   "places": objects.places.digest, "lines": f"{lines:x}",
                   "branches": f"{branches:x}",
                   "output": "" if has_passed else done.stdout[-4000:]}, file)
    print(f"{seconds:7.1f} s  {'ok  ' if has_passed else 'FAIL'} "
          f"{branches.bit_count():6} branches  {test['name']}", flush=True)
    return has_passed


def run(arguments):
    build, end = arguments.build, time.monotonic() + arguments.budget
    objects = Objects(build)
    os.makedirs(f"{build}/coverage", exist_ok=True)
    with open(f"{build}/coverage/places.json", "w", encoding="utf-8") as file:
        json.dump([objects.places.lines, objects.places.branches], file)
    tests = [test for test in listed_tests(build)
             if re.search(arguments.tests, test["name"]) and
             not os.path.exists(file_of(build, test["name"]))]
    failed, left = [], []

    def attempt(test):
        if time.monotonic() > end:
            left.append(test)
        elif not measure(build, objects, test):
            failed.append(test)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(attempt, [one for one in tests if not one["alone"]]))
    for test in [one for one in tests if one["alone"]]:
        attempt(test)
    still = [test["name"] for test in failed
             if not measure(build, objects, test)]
    print(f"{len(tests) - len(left)} tests ran, {len(left)} left; fail alone: "
          f"{' '.join(still) or 'none'}")
    return 1 if still else 0


def load(build):
    """Returns the Places and the stored tests, whose sets are ints."""
    with open(f"{build}/coverage/places.json", encoding="utf-8") as file:
        lines, branches = json.load(file)
    places = Places([tuple(place) for place in lines],
                    [tuple(place) for place in branches])
    tests = []
    for test in listed_tests(build):
        path = file_of(build, test["name"])
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        if stored["places"] != places.digest:
            sys.exit(f"{path} is of another build; remove it")
        for key in ("lines", "branches"):
            stored[key] = int(stored[key], 16)
        tests.append(stored)
    return places, tests


def taken(tests, *tiers):
    bits = 0
    for test in tests:
        if test["tier"] in tiers:
            bits |= test["branches"]
    return bits


def print_table(places, tests):
    """Prints the branches of each folder, as a table of Markdown."""
    quick, full = taken(tests, "quick"), taken(tests, "quick", "full")
    numbers = collections.defaultdict(lambda: [0, 0, 0, 0])
    for i, (file, _, _) in enumerate(places.branches):
        is_quick, is_full = quick >> i & 1, full >> i & 1
        for row in (file.split("/")[1], "all"):
            for column, value in enumerate((1, is_quick, is_full,
                                            is_full - is_quick)):
                numbers[row][column] += value
    print("| Folder | Branches | Quick takes | Full takes | Only full |")
    print("|---|---|---|---|---|")
    for row in (*FOLDERS, "all"):
        all_of, of_quick, of_full, rest = numbers[row]
        print(f"| {row} | {all_of:,} | {of_quick:,} "
              f"({100 * of_quick / max(1, all_of):.1f} %) | {of_full:,} "
              f"({100 * of_full / max(1, all_of):.1f} %) | {rest} |")


def print_missed(places, tests):
    """Prints the lines with branches that only full takes, and the tests that
    take them."""
    missed = taken(tests, "quick", "full") & ~taken(tests, "quick")
    found = collections.defaultdict(lambda: [0, set()])
    for i, (file, line, _) in enumerate(places.branches):
        if missed >> i & 1:
            entry = found[file, line]
            entry[0] += 1
            entry[1].update(test["name"] for test in tests
                            if test["branches"] >> i & 1)
    for (file, line), (count, names) in sorted(found.items()):
        with open(os.path.join(ROOT, file), encoding="utf-8") as source:
            text = source.read().splitlines()[line - 1].strip()
        print(f"{file}:{line} ({count}): {text}\n    {len(names)} tests: "
              f"{' '.join(sorted(names)[:4])}")


def report(arguments):
    places, tests = load(arguments.build)
    for tier in ("quick", "full"):
        have = {test["name"] for test in tests if test["tier"] == tier}
        missing = [test["name"] for test in listed_tests(arguments.build)
                   if test["tier"] == tier and test["name"] not in have]
        print(f"{tier}: {len(have)} tests ran; not run: "
              f"{' '.join(missing) or 'none'}")
    print("failed:", " ".join(test["name"] for test in tests
                              if not test["passed"]) or "none", "\n")
    print_table(places, tests)
    print()
    print_missed(places, tests)
    return 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "report"))
    parser.add_argument("build")
    parser.add_argument("--budget", type=float, default=float("inf"),
                        metavar="SECONDS", help="start no test after this time")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--tests", default="", metavar="REGEX")
    arguments = parser.parse_args()
    return run(arguments) if arguments.action == "run" else report(arguments)


if __name__ == "__main__":
    sys.exit(main())
