#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# build.sh [TARGET ...]: configures build/ and builds the targets. Always
# configures (2 s), so that cmake finds newly installed packages. Tests use the
# Python environment of install.sh. With CCACHE_SLOPPINESS, ccache stores files
# that use precompiled headers.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv/bin/python3 ] || {
  echo "build.sh: error: .venv is missing; run: scripts/install.sh" >&2
  exit 1
}
first=()
[ -f build/build.ninja ] || first=(
  -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc
  -DMLIR_DIR=/usr/lib/llvm-22/lib/cmake/mlir
)
cmake -G Ninja -B build -DPython3_EXECUTABLE="$PWD/.venv/bin/python3" \
  "${first[@]}" >/dev/null
export CCACHE_SLOPPINESS=pch_defines,time_macros
ninja -C build "$@"
