#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# cudnn.sh [VERSION ...]: installs versions of cuDNN into build/cudnn/VERSION,
# for tests/runtime/CudnnPlan, which checks their plans without a GPU. Also
# installs the libraries that cuDNN loads: NVRTC, and cuBLASLt unless the system
# has it. Programs use the machine's cuDNN. The default versions download 0.5
# and 0.6 GB from PyPI and take 0.5 and 0.9 GB of disk.
#
# The default versions are 9.19, the oldest supported one, and 9.28, which has a
# deterministic engine for sm_90. 9.20.0.48 behaves like 9.19.
set -euo pipefail
cd "$(dirname "$0")/.."

(($#)) || set -- 9.19.0.56 9.28.1.4

download=$(mktemp -d "${TMPDIR:-/tmp}/cudnn.XXXXXX")
trap 'rm -rf "$download"' EXIT
fetch() { # downloads Python packages into $download, without dependencies
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
  # cuDNN looks for cuBLASLt in its own folder.
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
