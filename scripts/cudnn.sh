#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# cudnn.sh [VERSION ...]: installs the versions of cuDNN whose plans the tests
# check (tests/runtime/CudnnPlan), each into build/cudnn/VERSION, with the
# compiler (NVRTC) and the library (cuBLASLt) that they load. Downloads 0.5 and
# 0.6 GB from PyPI and keeps 0.5 and 0.9 GB; cuBLASLt only if the system has
# none. Only tests need them, without a GPU; programs use the machine's cuDNN.
#
# Default versions: 9.19, the oldest supported, and 9.28, which has an engine
# for sm_90 that adds in order. 9.20.0.48 behaves like 9.19.
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
if ! /sbin/ldconfig -p | grep -q 'libcublasLt\.so\.13 ' &&
  ! [ -f "$cublas" ]; then
  echo "installing cuBLASLt into build/cudnn"
  mkdir -p build/cudnn
  fetch nvidia-cublas==13.1.0.3
  mv "$download"/nvidia/cu13/lib/libcublasLt.so.13 "$cublas.part"
  mv "$cublas.part" "$cublas"
  rm -rf "${download:?}"/*
fi

for version; do
  folder=build/cudnn/$version
  # cuDNN looks in its own folder.
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
  # Move libcudnn.so last: the check above looks for it.
  mv "$download"/nvidia/cudnn/lib/libcudnn_* "$folder"
  mv "$download"/nvidia/cudnn/lib/libcudnn.so* "$folder"
  rm -rf "${download:?}"/*
done
