#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# Builds and runs every test: GoogleTest, lit, end to end, and the runtime on
# its own, without LLVM, under the sanitizers.
set -euo pipefail
cd "$(dirname "$0")"
repository=$PWD

scripts/install.sh --tests
scripts/cudnn.sh
export PATH="$repository/.venv/bin:$PATH"

section() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

section "build"
scripts/build.sh
export PATH="$repository/build/bin:$PATH"

section "unit and text tests"
ctest --test-dir build --output-on-failure -j2

section "qlora-data"
python3 -m unittest discover -s tests/tools/qlora-data 2>&1 | tail -5

section "qlora"
python3 -m unittest discover -s tests/tools/qlora 2>&1 | tail -5

section "golden cases"
tests/e2e/goldens.py --tools build/bin --jobs 2

section "end to end"
tests/e2e/run.sh build/bin

# The runtime builds and passes its tests with no LLVM in sight.
sanitize() { # folder, sanitizers, which tests, and their programs
  cmake -G Ninja -B "$1" -DQLORA_COMPILER=OFF -DQLORA_SANITIZE="$2" \
    -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc >/dev/null
  ninja -C "$1" "${@:4}"
  ctest --test-dir "$1" --output-on-failure -j2 -R "$3"
}
section "runtime under AddressSanitizer and UBSan"
sanitize build/asan "address;undefined" 'Tests$|^CudnnOrdered$' \
  Runtime{Base,Kernels,Module,Device,Ranks,Weights,Data,Predict,Watch,Session}Tests \
  {Kernel,Frontend,CudaPlatform}Tests
section "runtime under ThreadSanitizer"
# oneDNN's own libgomp is not instrumented: with one thread it has no barriers
# that ThreadSanitizer could take for races. Jobs of several ranks on the
# software CUDA platform have bounds in seconds, which it would outlast. Rooms
# without threads of their own have then nothing to find.
export OMP_NUM_THREADS=1 GTEST_FILTER='-CudaRanks*:CudaDeviceRanks*:Nccl*'
sanitize build/tsan thread \
  '^Runtime(Base|Device|Ranks|Weights|Data|Session)Tests$' \
  Runtime{Base,Device,Ranks,Weights,Data,Session}Tests

section "done"
