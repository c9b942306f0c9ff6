#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# Builds and runs all tests: GoogleTest, lit, end to end, and the runtime alone,
# without LLVM, under the sanitizers.
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
# Tests that start processes mostly wait for them: run three at a time on two
# cores.
ctest --test-dir build --output-on-failure -j3

section "qlora-data, qlora and golden cases"
tests/e2e/lanes.py 2 <<'END'
python3 -m unittest discover -s tests/tools/qlora-data
python3 -m unittest discover -s tests/tools/qlora
tests/e2e/goldens.py --tools build/bin --jobs 2
END

section "end to end"
tests/e2e/run.sh build/bin

# The runtime builds and passes its tests without LLVM.
build_with() { # folder, sanitizers, programs and flags of ninja
  cmake -G Ninja -B "$1" -DQLORA_COMPILER=OFF -DQLORA_SANITIZE="$2" \
    -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc >/dev/null &&
    ninja -C "$1" "${@:3}"
}
test_in() { ctest --test-dir "$1" --output-on-failure -j3 -R "$2"; }
# oneDNN's libgomp is not instrumented: with one thread it has no barriers that
# ThreadSanitizer could report as races. Jobs of several ranks on the software
# CUDA platform have time limits in seconds, too short for ThreadSanitizer.
# Folders without threads of their own have nothing to check.
without_races() {
  build_with build/tsan thread -j2 \
    Runtime{Base,Device,Ranks,Weights,Data,Session}Tests &&
    OMP_NUM_THREADS=1 GTEST_FILTER='-CudaRanks*:CudaDeviceRanks*:Nccl*' \
      test_in build/tsan '^Runtime(Base|Device|Ranks|Weights|Data|Session)Tests$'
}
export -f build_with test_in without_races

section "runtime under AddressSanitizer and UBSan, and under ThreadSanitizer"
build_with build/asan "address;undefined" \
  Runtime{Base,Kernels,Module,Device,Ranks,Weights,Data,Predict,Watch,Session}Tests \
  {Kernel,Frontend,CudaPlatform}Tests
# Build the other tree while tests wait.
tests/e2e/lanes.py 2 <<'END'
test_in build/asan 'Tests$|^CudnnOrdered$'
without_races
END

section "done"
