#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Measures whether the tests notice small changes of the runtime's code.

    mutants.py BUILD [--seed N] [--each N] [--seconds N] [--only ID ...]

BUILD is the tree of coverage.py, after `coverage.py run BUILD`. The script
draws mutants, the same number in each folder: each changes one operator,
constant, condition, call or return on a line that some test executes. A mutant
is written into the source file, which is restored afterwards. Tests that
execute the line run until one fails: quick before full, unit tests before
scripts, cheap before expensive, for at most --seconds of each tier. If a test
program takes longer, only the suites of the source file run. A test that
fails runs once more. Results are kept in BUILD/coverage/mutants.json, and the
next call continues there; --only runs the named mutants again.

Tests run in a separate process namespace, because a mutant may kill any
process.
"""

import argparse
import collections
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time

import coverage

# Programs that test scripts start. They must be built with the mutant.
PROGRAMS = ("qlora-run", "qloracc", "qlora-import", "qlora-opt", "qlora",
            "VirtualRanks")
GIB = 1 << 30
# (name, pattern, replacement). The patterns match code whose comments and
# strings blank() has replaced.
OPERATORS = [
    ("negate a condition",
     r"\bif \((?P<x>[^;=]*(?:[=!<>]=[^;=]*)*)\)(?= \{|$)", None),
    *((f"{old} to {new}", rf"(?<= ){re.escape(old)}(?= |$)", new)
      for old, new in (("<", "<="), ("<=", "<"), (">", ">="), (">=", ">"),
                       ("==", "!="), ("!=", "=="), ("+", "-"), ("-", "+"),
                       ("*", "/"), ("/", "*"), ("%", "*"), ("&&", "||"),
                       ("||", "&&"), ("+=", "-="), ("-=", "+="))),
    ("constant plus one", r"(?<![\w.\"'])(?P<n>\d+)(?![\w.'])", None),
    ("true to false", r"\btrue\b", "false"),
    ("false to true", r"\bfalse\b", "true"),
    ("remove a call",
     r"^ *(?P<x>(?!QLORA_ASSIGN)[A-Za-z_][\w:.>\[\]-]*\(.*\);)$", ";"),
    ("return a default",
     r"\breturn (?!\{\}|true|false|Status::ok)[^;]+;", "return {};"),
    ("break to continue", r"\bbreak;", "continue;"),
    ("continue to break", r"\bcontinue;", "break;"),
]


def blank(text):
    """Returns the code with comments and strings replaced by as many '_'."""
    return re.sub(r'//.*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\'',
                  lambda found: "_" * len(found[0]), text)


def mutants_of(text, previous):
    """Yields (operator, changed line) for each mutant of a line. `previous` is
    the preceding line."""
    code = blank(text)
    if re.match(r"\s*(#|assert\(|static_assert|template|case |using )", text):
        return
    for name, pattern, new in OPERATORS:
        for found in re.finditer(pattern, code):
            begin, end = found.span()
            # Operators on strings and paths join them.
            if name[0] in "+-*/" and ('"' in text or "fs::" in text):
                continue
            if name == "negate a condition":
                inner = text[found.start("x"):found.end("x")]
                if inner.count("(") != inner.count(")"):
                    continue
                change = f"if (!({inner}))"
            elif name == "constant plus one":
                change = str(int(found["n"]) + 1)
            elif name == "remove a call":
                if (not re.search(r"([;{})]|else|_)$", blank(previous)) or
                        code.count("(") != code.count(")")):
                    continue
                begin, change = found.start("x"), new
            else:
                change = new
            yield name, text[:begin] + change + text[end:]


class Candidates:
    """The lines of the six folders that tests execute, in a random order."""

    def __init__(self, places, tests, seed):
        covered = 0
        for test in tests:
            covered |= test["lines"]
        self.places = places
        self.lines = collections.defaultdict(list)
        for file, line in places.select(places.lines, covered):
            if file.endswith(".cpp"):  # changed headers compile too long
                self.lines[file.split("/")[1]].append((file, line))
        self.random = random.Random(seed)
        for lines in self.lines.values():
            self.random.shuffle(lines)

    def draw(self, folder):
        """Returns a mutant of the folder on a line that was not drawn
        before."""
        while self.lines[folder]:
            file, line = self.lines[folder].pop()
            with open(os.path.join(coverage.ROOT, file),
                      encoding="utf-8") as source:
                texts = source.read().split("\n")
            choices = list(mutants_of(*reversed(texts[line - 2:line])))
            if choices:
                operator, changed = self.random.choice(choices)
                return {"file": file, "line": line, "operator": operator,
                        "old": texts[line - 1], "new": changed}
        return None


class Mutated:
    """A source file with one changed line, until the end of a `with`."""

    def __init__(self, mutant):
        self.mutant = mutant
        self.path = os.path.join(coverage.ROOT, mutant["file"])

    def __enter__(self):
        with open(self.path, encoding="utf-8") as file:
            self.original = file.read()
        lines = self.original.split("\n")
        if lines[self.mutant["line"] - 1] != self.mutant["old"]:
            sys.exit(f"{self.path} is not the file that was measured")
        lines[self.mutant["line"] - 1] = self.mutant["new"]
        self._write("\n".join(lines))

    def __exit__(self, *_):
        self._write(self.original)

    def _write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)


def build_targets(build, *targets):
    """Builds targets. Returns whether that succeeded."""
    environment = {**os.environ, "CCACHE_READONLY": "1",
                   "CCACHE_SLOPPINESS": "pch_defines,time_macros"}
    return subprocess.run(["ninja", "-C", build, "-j2", *targets],
                          env=environment, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False
                          ).returncode == 0


def limit_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (12 * GIB, 12 * GIB))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def passes(build, name, seconds, suites="*"):
    """Runs a test in separate namespaces; of a test program, only `suites`.
    Returns whether it passed, or None if `seconds` are over."""
    enter = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        enter.append("--map-root-user")
    # bash is the namespace's first process and reaps orphans.
    command = [*enter, "bash", "-c", '"$@"; exit $?', "bash",
               *coverage.ctest_command(build, name)]
    counters = os.path.join(os.path.abspath(build), "coverage", "mutant")
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=limit_memory,
        env={**coverage.environment(counters), "GTEST_FAIL_FAST": "1",
             "GTEST_FILTER": suites})
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()


def order(tests, mutant, places):
    """Returns the tests that execute the line of a mutant, in the order in
    which to try them."""
    bit = places.line_bits[mutant["file"], mutant["line"]]
    folder = mutant["file"].split("/")[1]

    def rank(test):
        is_unit = test["program"].endswith("Tests")
        is_own = test["name"] == f"Runtime{folder}Tests"
        return (test["tier"] != "quick", not is_own, not is_unit,
                test["seconds"])

    return sorted((test for test in tests
                   if test["passed"] and test["lines"] & bit), key=rank)


class Trial:
    """Runs the tests of one mutant, for at most `seconds` in each tier. `stem`:
    name of the source file, with which the names of its suites begin."""

    def __init__(self, build, seconds, stem):
        self.build, self.seconds, self.stem = build, seconds, stem
        self.used = collections.Counter()
        self.are_built = False

    def find_killer(self, tests):
        """Returns the name of a test that fails, or None, and the tiers whose
        seconds were over."""
        cut = set()
        for test in tests:
            if test["tier"] in cut:
                continue
            verdict = self.try_test(test)
            if verdict == "cut":
                cut.add(test["tier"])
            elif verdict:
                return f"{test['name']} ({verdict})", cut
        return None, cut

    def try_test(self, test):
        """Returns "fails", "hangs", "cut" if the seconds are used, or None."""
        targets = [test["program"]]
        if not test["program"].endswith("Tests"):
            targets = () if self.are_built else PROGRAMS
            self.are_built = True
        if targets and not build_targets(self.build, *targets):
            sys.exit(f"cannot build {' '.join(targets)} in {self.build}")
        is_long = test["seconds"] > self.seconds
        for _ in range(2):
            left = self.seconds - self.used[test["tier"]]
            longest = 5 * test["seconds"] + 10
            if left < 1:
                return "cut"
            start = time.monotonic()
            result = passes(self.build, test["name"], min(left, longest),
                            self.stem + "*" if is_long else "*")
            self.used[test["tier"]] += time.monotonic() - start
            if result:
                return None
            if result is None:
                return "hangs" if longest <= left else "cut"
        return "fails"


def try_mutant(build, mutant, tests, places, seconds):
    """Runs the tests of a mutant, and stores the outcome in it."""
    ordered = order(tests, mutant, places)
    source = os.path.join(coverage.ROOT, mutant["file"])
    users = subprocess.run(["ninja", "-C", build, "-t", "query", source],
                           check=False, text=True,
                           stdout=subprocess.PIPE).stdout.split()
    objects = [user for user in users if user.endswith(".o")]
    mutant["killer"] = None
    with Mutated(mutant):
        if not objects or not build_targets(build, *objects):
            mutant["result"] = "does not compile"
            return
        start = time.monotonic()
        stem = os.path.splitext(os.path.basename(source))[0]
        trial = Trial(build, seconds, stem)
        mutant["killer"], cut = trial.find_killer(ordered)
    killer_tier = next((test["tier"] for test in ordered if mutant["killer"] and
                        mutant["killer"].startswith(test["name"] + " (")), None)
    mutant["result"] = (f"killed by {killer_tier}" if killer_tier
                        else "survived")
    mutant["cut"] = sorted(cut)
    mutant["seconds"] = round(time.monotonic() - start)
    mutant["tests"] = len(ordered)


def show(mutant):
    cut = " and ".join(mutant.get("cut", []))
    print(f"{mutant['id']:3} {mutant['result']:16} {mutant['file']}:"
          f"{mutant['line']} {mutant['operator']}\n"
          f"      - {mutant['old'].strip()}\n"
          f"      + {mutant['new'].strip()}\n"
          f"      {mutant['killer'] or ''}"
          f"{' time was up in ' + cut if cut else ''}", flush=True)


def summary(mutants):
    """Prints a Markdown table: the number of mutants by folder and outcome."""
    results = ("killed by quick", "killed by full", "survived")
    print("\n| Folder | Mutants | " + " | ".join(results) + " |")
    print("|---|---|" + "---|" * len(results))
    for folder in (*coverage.FOLDERS, ""):
        chosen = [one["result"] for one in mutants
                  if one["file"].startswith(f"runtime/{folder}") and
                  one["result"] in results]
        counts = " | ".join(str(chosen.count(one)) for one in results)
        print(f"| {folder or 'all'} | {len(chosen)} | {counts} |")


def draw_all(arguments, places, tests, mutants, store):
    """Draws and tries mutants until each folder has enough."""
    candidates = Candidates(places, tests, arguments.seed)
    drawn = {folder: 0 for folder in coverage.FOLDERS}
    number = 0
    while folders := [one for one, count in drawn.items()
                      if count < arguments.each]:
        for folder in folders:
            mutant = candidates.draw(folder)
            if not mutant:
                drawn[folder] = arguments.each
                continue
            if number < len(mutants):
                mutant = mutants[number]
            else:
                mutants.append({"id": number, **mutant})
                mutant = mutants[number]
                try_mutant(arguments.build, mutant, tests, places,
                           arguments.seconds)
                store()
                show(mutant)
            number += 1
            drawn[folder] += mutant["result"] != "does not compile"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=10,
                        help="mutants of each folder")
    parser.add_argument("--seconds", type=float, default=60,
                        help="for the tests of a mutant, in each tier")
    parser.add_argument("--only", type=int, nargs="*", metavar="ID",
                        help="run these again; none: print the results")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    places, tests = coverage.load(arguments.build)
    path = os.path.join(arguments.build, "coverage", "mutants.json")
    mutants = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            mutants = json.load(file)

    def store():
        with open(path, "w", encoding="utf-8") as file:
            json.dump([one for one in mutants if "result" in one], file,
                      indent=1)

    try:
        if arguments.only is None:
            draw_all(arguments, places, tests, mutants, store)
        for number in arguments.only or []:
            try_mutant(arguments.build, mutants[number], tests, places,
                       arguments.seconds)
            store()
    finally:  # the last mutants are still in the programs
        build_targets(arguments.build, *PROGRAMS, *sorted(
            {test["program"] for test in tests
             if test["program"].endswith("Tests")}))
    for mutant in mutants:
        show(mutant)
    summary(mutants)


if __name__ == "__main__":
    main()
