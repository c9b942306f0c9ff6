#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# run.sh TOOLS: the end-to-end tests beside the golden cases on their own
# ranks: derivative rules, promises, other ranks, bf16, each optimisation off.
set -euo pipefail
tools=$(realpath "$1")
cd "$(dirname "$0")"

./gradients.py --tools "$tools"
./promises.py --tools "$tools"

echo "-- on one rank"
./goldens.py --tools "$tools" --ranks 1
echo "-- bf16 compute"
./goldens.py --tools "$tools" --bf16
for pass in fuse-lora fuse-accumulate rematerialize plan-dequant fuse-rows \
  bucket-gradients; do
  echo "-- without $pass"
  ./goldens.py --tools "$tools" --compile-flag=--disable-pass=$pass \
    llama-nf4 qwen3-ranks llama-dropout
done
for form in panel scratch resident; do
  echo "-- weights decoded: $form"
  ./goldens.py --tools "$tools" --compile-flag=--dequant=$form \
    llama-nf4 mistral-window
done
echo "-- gradient checkpointing"
./goldens.py --tools "$tools" --compile-flag=--gradient-checkpointing \
  llama-nf4 qwen2-nf4 llama-packed llama-dropout
echo "-- adapters in PEFT"
./peft_load.py --tools "$tools"
echo "-- dropout with the same masks in PyTorch"
./dropout_replay.py --tools "$tools"

echo "-- CUDA on the software platform"
./goldens.py --tools "$tools" --target cuda --ranks 1
./goldens.py --tools "$tools" --target cuda --ranks 1 --bf16
./cuda_platform.py --tools "$tools"
echo "-- the GPU script on the software platform"
./gpu_script.py --tools "$tools"
