#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The GEMM algorithms on the software CUDA platform.

    gemm_table.py --tools build/bin [--case llama-lora]

  measured  GEMMs are measured at load, the fastest algorithm is used, and
            the table is in the output and in the user's cache
  cached    the next run measures nothing and writes the same adapter
  pinned    a named table is used unchanged, without a heuristic
  first     cuBLASLt's first choices, without a measurement, take longer
  seeds     no algorithm depends on the order of streams
  refused   a table of another GPU, driver or library, one with a false
            library version, one that lacks a GEMM, and a damaged one: one
            line each
  damaged   a damaged cache is noted and replaced
  ranks     the first rank of each kind of GPU decides for its kind
"""

import argparse
import glob
import json
import os
import sys
import tempfile

from cuda_platform import Case, Failure, expect

STEPS = ("--max-steps", "3")
TWO = ("--gradient-accumulation-steps", "1")
SPENT = "nanoseconds of products"
# Algorithms of the simulated cuBLASLt that always fail, or fail in a capture.
OUT = (3, 4)


class Tables:
    """Runs of a case, each with a cache of the given name."""

    def __init__(self, case, work):
        self.case, self.work = case, work

    def cache(self, name):
        return os.path.join(self.work, "caches", name)

    def cached(self, name):
        return os.path.join(self.cache(name), "qlora", "gemm_table.json")

    def run(self, cache, *flags, **settings):
        """Runs the case. Returns the adapter, the counters of every rank, and
        the text of the table."""
        outputs = set(glob.glob(f"{self.work}/*/gemm_table.json"))
        case, ranks = self.case, settings.pop("ranks", 1)
        case.cache = self.cache(cache)
        case.train(*STEPS, *flags, ranks=ranks, **settings)
        made = set(glob.glob(f"{self.work}/*/gemm_table.json")) - outputs
        folder = os.path.dirname(made.pop())
        reports = []
        for path in glob.glob(f"{folder}/report-*.json"):
            with open(path) as file:
                reports.append(json.load(file))
        with open(f"{folder}/adapter_model.safetensors", "rb") as file:
            adapter = file.read()
        with open(f"{folder}/gemm_table.json") as file:
            return adapter, reports, file.read()

    def refusal(self, *flags, **settings):
        self.case.cache = self.cache("refused")
        code, errors, _, _ = self.case.run([*STEPS, *flags], **settings)
        lines = [line for line in errors.splitlines()
                 if not line.startswith("cuda-platform:")]
        if code == 0 or len(lines) != 1:
            raise Failure(f"{flags}: exit {code}: {lines}")
        return lines[0]

    def write(self, name, text):
        path = os.path.join(self.work, name)
        with open(path, "w") as file:
            file.write(text)
        return path


def products(text, card=0):
    return json.loads(text)["cards"][card]["products"]


def word(row, index):
    """Returns one of an algorithm's eight words (CublasLt/Algorithms.h)."""
    return int(row["algorithm"][16 * index:16 * index + 16], 16)


def scheme_of(row):
    return word(row, 2) & 0xffffffff


def kernel_of(row):
    return word(row, 6)


def check_measured(tables):
    adapter, [counts], text = tables.run("own")
    rows = products(text)
    measured = [row for row in rows if row["microseconds"]]
    wanted = [row for row in rows if row["alignment"] == 16]
    failed = expect("measured", measured == wanted and len(measured) > 5,
                    f"{len(measured)} of {len(rows)} products, in "
                    f"{counts.get('cuEventElapsedTime', 0)} timings")
    kept = [row["scratch"] <= row["scratch_limit"] and
            scheme_of(row) in (0, 2) for row in rows]
    failed += expect("measured", all(kept), "within the workspace, and each "
                     "sum in one order")
    opaque = sum(kernel_of(row) > 0 for row in measured)
    failed += expect("measured", 0 < opaque and
                     not any(kernel_of(row) in OUT for row in rows),
                     f"{opaque} products use an algorithm that no attribute "
                     "tells, none one that cannot run")
    with open(tables.cached("own")) as file:
        cached = products(file.read())
    return failed + expect("measured", cached == measured,
                           "the cache has what was measured"), adapter, text


def check_reuse(tables, adapter, text):
    again, [counts], table = tables.run("own")
    failed = expect("cached", again == adapter and table == text and
                    "cuEventElapsedTime" not in counts, "same bits, no timing")
    fastest = counts[SPENT]
    pinned = tables.write("pinned.json", text)
    again, [counts], table = tables.run("none", "--gemm-table", pinned)
    failed += expect("pinned", again == adapter and table == text and
                     "cuEventElapsedTime" not in counts and
                     "cublasLtMatmulAlgoGetHeuristic" not in counts and
                     not os.path.exists(tables.cached("none")),
                     "same bits, no timing, no heuristic")
    first, [counts], table = tables.run("none", "--gemm-table", "heuristic")
    failed += expect("first", counts[SPENT] > 1.1 * fastest and
                     not any(row["microseconds"] for row in products(table)),
                     f"{counts[SPENT] / fastest:.2f} times the time")
    for seed in (2, 3):
        again, _, table = tables.run(f"seed{seed}", seed=seed)
        failed += expect("seeds", again == adapter and table == text,
                         f"seed {seed}")
    return failed


def check_refused(tables, text):
    failed, pinned = 0, tables.write("pinned.json", text)
    lacking, other, wrong, cut = (json.loads(text) for _ in range(4))
    del lacking["cards"][0]["products"][0]
    other["cards"][0]["cublaslt"] = 130100
    wrong["cards"][0]["products"][0]["m"] = "many"
    first = cut["cards"][0]["products"][0]
    first["algorithm"] = first["algorithm"][:100]
    for what, part, path, settings in (
            ("driver", "is not for Software sm_90 (9.0, ", pinned,
             {"version": 13010}),
            ("cuBLASLt", "cuBLASLt 13.1.0", pinned, {"blas": 130100}),
            ("product", "has no GEMM ", tables.write(
                "lacking.json", json.dumps(lacking)), {}),
            ("algorithm", "rejects the algorithm for GEMM ",
             tables.write("other.json", json.dumps(other)), {"blas": 130100}),
            ("algorithm", "algorithm expects 128 hexadecimal digits or null",
             tables.write("digits.json", json.dumps(cut)), {}),
            ("damage",
             "is damaged or not a table of GEMM algorithms: the whole",
             tables.write("cut.json", text[:len(text) // 2]), {}),
            ("damage", "cards[0].products[0].m expects an integer",
             tables.write("wrong.json", json.dumps(wrong)), {}),
            ("no file", "cannot read ", "nowhere.json", {})):
        line = tables.refusal("--gemm-table", path, **settings)
        failed += expect("refused", part in line and path in line,
                         f"{what}: {line}")
    return failed


def check_damaged_cache(tables, adapter, text):
    os.makedirs(os.path.dirname(tables.cached("damaged")))
    tables.write(tables.cached("damaged"), text[:100])
    again, [counts], table = tables.run("damaged")
    with open(tables.cached("damaged")) as file:
        replaced = len(products(file.read()))
    return expect("damaged", again == adapter and table == text and
                  counts["cuEventElapsedTime"] > 0 and replaced > 0,
                  f"{replaced} products measured again")


def check_ranks(tables, text):
    two = {"ranks": 2, "devices": "sm_90:4096,sm_90:4096"}
    adapter, reports, table = tables.run("ranks", *TWO, **two)
    timings = sorted(r.get("cuEventElapsedTime", 0) for r in reports)
    failed = expect("ranks", timings[0] == 0 < timings[1] and table == text,
                    f"one rank measures ({timings[1]} timings)")
    # Simulated times differ on rank 1. If it measured separately, it would
    # choose other algorithms.
    again, _, table = tables.run("speeds", *TWO, speeds="3@1", **two)
    failed += expect("ranks", again == adapter and table == text,
                     "another rank's times change nothing")
    alone, _, table = tables.run("alone", *TWO, speeds="3", **two)
    failed += expect("ranks", alone != adapter and table != text,
                     "the first rank's do")
    _, reports, table = tables.run(
        "kinds", *TWO, ranks=2, devices="sm_80:4096,sm_90:4096")
    names = [card["name"] for card in json.loads(table)["cards"]]
    timings = sorted(r.get("cuEventElapsedTime", 0) for r in reports)
    return failed + expect("ranks", timings[0] > 0 and
                           names == ["Software sm_80", "Software sm_90"],
                           f"each kind is measured: {names}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--case", default="llama-lora")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        try:
            case = Case(options.tools, options.case, work, archs="80,90")
            tables = Tables(case, work)
            failed, adapter, text = check_measured(tables)
            failed += check_reuse(tables, adapter, text)
            failed += check_refused(tables, text)
            failed += check_damaged_cache(tables, adapter, text)
            failed += check_ranks(tables, text)
        except Failure as failure:
            print(f"FAIL {failure}")
            failed = 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
