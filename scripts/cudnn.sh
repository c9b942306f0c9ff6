#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# cudnn.sh [VERSION ...]: the versions of cuDNN whose plans the tests look at
# (tests/runtime/CudnnPlan), each into build/cudnn/VERSION, with the compiler
# (NVRTC) and the library (cuBLASLt) that they load. From PyPI, 0.5 and 0.6 GB,
# of which 0.5 and 0.9 GB are kept; cuBLASLt only if the system has none. Only
# the tests need them: no GPU is needed, and programs use what a machine has.
#
# Without versions: 9.19 and 9.28, the oldest that is used and one with an
# engine for sm_90 that adds in order. 9.20.0.48 is as 9.19.
set -euo pipefail
cd "$(dirname "$0")/.."

(($#)) || set -- 9.19.0.56 9.28.1.4

download=$(mktemp -d "${TMPDIR:-/tmp}/cudnn.XXXXXX")
trap 'rm -rf "$download"' EXIT
fetch() { # packages: into $download, without what they depend on
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps \
    --root-user-action ignore --only-binary :all: --target "$download" "$@"
}

cublas=build/cudnn/libcublasLt.so.13
if ! /sbin/ldconfig -p | grep -q 'libcublasLt\.so\.13 ' && ! [ -f "$cublas" ]; then
  echo "installing cuBLASLt into build/cudnn"
  mkdir -p build/cudnn
  fetch nvidia-cublas==13.1.0.3
  mv "$download"/nvidia/cu13/lib/libcublasLt.so.13 "$cublas.part"
  mv "$cublas.part" "$cublas"
  rm -rf "${download:?}"/*
fi

for version; do
  folder=build/cudnn/$version
  # cuDNN looks beside itself.
  [ ! -f "$cublas" ] || {
    mkdir -p "$folder"
    ln -sfn ../libcublasLt.so.13 "$folder/libcublasLt.so.13"
  }
  [ -f "$folder/libcudnn.so.9" ] && continue
  echo "installing cuDNN $version into $folder"
  fetch "nvidia-cudnn-cu13==$version" nvidia-cuda-nvrtc==13.0.88
  rm -f "$download"/nvidia/cudnn/lib/libcudnn_{adv,cnn}.so* \
    "$download"/nvidia/cu13/lib/*.alt.*
  mkdir -p "$folder"
  mv "$download"/nvidia/cu13/lib/libnvrtc* "$folder"
  # The file that the check above asks for, last.
  mv "$download"/nvidia/cudnn/lib/libcudnn_* "$folder"
  mv "$download"/nvidia/cudnn/lib/libcudnn.so* "$folder"
  rm -rf "${download:?}"/*
done
