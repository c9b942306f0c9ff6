#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# build.sh [TARGET ...]: configures build/ once and builds the targets.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -f build/build.ninja ] ||
  cmake -G Ninja -B build -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc \
    -DMLIR_DIR=/usr/lib/llvm-22/lib/cmake/mlir >/dev/null
ninja -C build "$@"
