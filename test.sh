#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# test.sh [quick|full|soak]: builds everything, and runs a tier of the tests.
#
#   quick  every change: at most 15 minutes on two cores (the default)
#   full   before a merge: quick and the rest, except soak
#   soak   longer versions of tests, failures of hosts, launchers,
#          ThreadSanitizer: a night
#
# All tests are ctest's: `ctest --test-dir build -R NAME`, `--rerun-failed` and
# `-L full` work as usual (docs/internals/testing.md).
set -euo pipefail
cd "$(dirname "$0")"

case "${1-quick}" in
  quick) tests=(--label-exclude '^(full|soak)$') ;;
  full) tests=(--label-exclude '^soak$') ;;
  soak) tests=(--label-regex '^soak$') ;;
  *)
    echo "test.sh: error: '$1' is no tier. Fix: quick, full or soak." >&2
    exit 2
    ;;
esac

scripts/install.sh --tests
scripts/cudnn.sh
scripts/build.sh
# Tests that start processes mostly wait for them: run three at a time on two
# cores.
ctest --test-dir build --output-on-failure --stop-on-failure \
  -j$(($(nproc) + 1)) "${tests[@]}"
