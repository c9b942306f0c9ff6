#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# sanitized.sh FOLDER SANITIZER,... TARGET...: builds tests of the runtime into
# FOLDER, without LLVM and under the sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake -G Ninja -B "$1" -DQLORA_COMPILER=OFF -DQLORA_SANITIZE="${2//,/;}" \
  -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc >/dev/null
ninja -C "$1" "${@:3}"
