#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# sanitized.sh FOLDER SANITIZER,... TARGET...: builds runtime tests into FOLDER,
# with the sanitizers and without LLVM.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake -G Ninja -B "$1" -DQLORA_COMPILER=OFF -DQLORA_SANITIZE="${2//,/;}" \
  -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc >/dev/null
ninja -C "$1" "${@:3}"
