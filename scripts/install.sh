#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# Installs what is missing: Debian packages, and a Python environment in .venv
# for the data step (tokenizers, jinja2), which finds it there by itself, and
# the tests (numpy, ortools, NVML's header).
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  cmake ninja-build ccache g++ git python3 python3-venv
  libmlir-22-dev mlir-22-tools llvm-22-dev clang-22 lld-22
  libdnnl-dev libgloo-dev libyaml-cpp-dev nlohmann-json3-dev
  libfmt-dev libssl-dev libgtest-dev libgmock-dev
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

nvml=(.venv/lib/python3*/site-packages/nvidia/cu13/include/nvml.h)
if ! .venv/bin/python -c 'import tokenizers, jinja2, numpy, ortools' 2>/dev/null ||
  ! [ -f "${nvml[0]}" ]; then
  modules=(tokenizers jinja2 numpy ortools nvidia-nvml-dev==13.0.87)
  echo "installing ${modules[*]} into .venv"
  python3 -m venv .venv
  .venv/bin/pip install -q "${modules[@]}"
fi
