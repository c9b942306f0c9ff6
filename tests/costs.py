#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Prints what each test of a tier costs.

    costs.py BUILD_FOLDER [CTEST_FLAG ...]

The flags select tests as they do for ctest, such as -L soak. Each test runs
alone. A line has its core-seconds (user and system time of all its processes),
its wall seconds, its result and its name. The last line has the sums, and a
lower bound of the wall seconds on two cores. Exits with 1 if a test fails.
"""

import json
import re
import resource
import subprocess
import sys
import time


def core_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ctest = ["ctest", "--test-dir", sys.argv[1]]
    listed = json.loads(subprocess.run(
        [*ctest, *sys.argv[2:], "--show-only=json-v1"], check=True,
        stdout=subprocess.PIPE).stdout)
    total_cores = total_wall = failed = 0
    for name in (test["name"] for test in listed["tests"]):
        cores, start = core_seconds(), time.monotonic()
        # Without --fixture-exclude-any, ctest would also run the test's
        # fixtures, which are tests with measurements of their own.
        done = subprocess.run(
            [*ctest, "-R", f"^{re.escape(name)}$", "--fixture-exclude-any",
             "."],
            stdout=subprocess.DEVNULL)
        cores = core_seconds() - cores
        wall = time.monotonic() - start
        total_cores, total_wall = total_cores + cores, total_wall + wall
        failed += done.returncode != 0
        print(f"{cores:8.1f} {wall:8.1f}  "
              f"{'FAIL' if done.returncode else 'ok  '} {name}", flush=True)
    print(f"{total_cores:8.1f} {total_wall:8.1f}  {failed} failed; two cores "
          f"take at least {total_cores / 2:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
