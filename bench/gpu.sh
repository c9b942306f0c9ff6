#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# gpu.sh: measures our figures on a GPU against targets; manual in gpu.py.
#   gpu.sh --prepare DIR                     where LLVM and nvcc are
#   gpu.sh --bundle DIR [--part P] [--out F] where a GPU is
set -euo pipefail
if ! command -v python3 >/dev/null; then
  echo "gpu.sh: error: needs python3 (3.9 or later), which is not on PATH" >&2
  exit 1
fi
exec python3 "$(dirname "$0")/gpu.py" "$@"
