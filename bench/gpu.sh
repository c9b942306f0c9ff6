#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# gpu.sh: measures our figures on a GPU against targets. Manual: gpu.py.
#   gpu.sh --prepare DIR                     on a machine with LLVM and nvcc
#   gpu.sh --bundle DIR [--part P] [--out F] on a machine with a GPU
set -euo pipefail
if ! command -v python3 >/dev/null; then
  echo "gpu.sh: error: needs python3 (3.9 or later), which is not on PATH" >&2
  exit 1
fi
exec python3 "$(dirname "$0")/gpu.py" "$@"
