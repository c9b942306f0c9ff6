#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# run.sh TOOLS: the end-to-end tests beside the golden cases on their own
# ranks: derivative rules, promises, predictions, profiles, other ranks, bf16,
# each optimisation off, every two of what models and adapters have.
set -euo pipefail
# Each command, with the seconds before it.
PS4='+ ${SECONDS}s '
set -x
tools=$(realpath "$1")
cd "$(dirname "$0")"

# Their runs have one thread each: side by side on two cores.
said=$(mktemp)
setsid ./checkpoints.py --tools "$tools" >"$said" 2>&1 &
checkpoints=$!
trap 'kill -- -$checkpoints || true; cat "$said"; rm "$said"' EXIT
./resuming.py --tools "$tools"
./supervision.py --tools "$tools"
./hosts.py --tools "$tools"
./watching.py --tools "$tools"
code=0
wait $checkpoints || code=$?
trap - EXIT
cat "$said"
rm "$said"
((code == 0))

./gradients.py --tools "$tools"
./nonfinite.py --tools "$tools"
./promises.py --tools "$tools"
./predict.py --tools "$tools"
./step_profile.py --tools "$tools"
./padding_free.py --tools "$tools"
./reproducible.py --tools "$tools"
./base_cache.py --tools "$tools"
./optimizers.py --tools "$tools"
./full.py --tools "$tools"
./routers.py --tools "$tools"
./trained_tokens.py --tools "$tools"
./sweep.py --tools "$tools"
./report.py --tools "$tools"

echo "-- the CPU benchmarks with tiny shapes"
../../bench/cpu.py --fast --tools "$tools"
echo "-- on one rank"
./goldens.py --tools "$tools" --ranks 1 llama-dropout qwen3-ranks
echo "-- on two ranks"
./goldens.py --tools "$tools" --ranks 2 llama-muon-full
echo "-- bf16 compute"
./goldens.py --tools "$tools" --bf16
for pass in fuse-lora fuse-accumulate rematerialize plan-dequant fuse-rows \
  bucket-gradients assign-queues; do
  echo "-- without $pass"
  ./goldens.py --tools "$tools" --compile-flag=--disable-pass=$pass \
    llama-nf4 qwen3-ranks llama-dropout llama-full
done
echo "-- the base in pieces on the ranks"
./covering.py --tools "$tools" --fsdp --every 2
./covering.py --tools "$tools" --fsdp --target cuda --every 8
./goldens.py --tools "$tools" --ranks 2 --compile-flag=--parallel=fsdp=2 \
  --compile-flag=--divide-tables=true \
  llama-dpo-nf4 llama-dropout llama-embed-tied llama-packed llama-tokens-nf4 \
  mixtral-balance prequantized-bnb
./goldens.py --tools "$tools" --ranks 4 --compile-flag=--parallel=fsdp=2 \
  --compile-flag=--divide-tables=true qwen3-ranks
./goldens.py --tools "$tools" --ranks 2 --compile-flag=--parallel=fsdp=2 \
  --compile-flag=--disable-pass=schedule-gathers llama-nf4
echo "-- updates in pieces"
for target in "" "--target cuda" "--target cuda --bf16"; do
  ./goldens.py --tools "$tools" --ranks 2 --compile-flag=--parallel=zero1=2 \
    $target llama-full llama-embed-tied qwen3-ranks
done
./goldens.py --tools "$tools" --target cuda --ranks 4 \
  --compile-flag=--parallel=fsdp=2,zero1=2 qwen3-ranks
./shards.py --tools "$tools"
echo "-- products that ranks share"
./tensor_parallel.py --tools "$tools" --every 2
./tensor_parallel.py --tools "$tools" --target cuda --every 7
for target in "" "--bf16" "--target cuda --bf16"; do
  ./goldens.py --tools "$tools" --tp 2 $target qwen3-ranks phi3-nf4 llama-full \
    mixtral llama-dpo llama-lora-bias gpt2-bias-all llama-int8
done
for form in panel scratch resident; do
  echo "-- weights decoded: $form"
  ./goldens.py --tools "$tools" --compile-flag=--dequant=$form \
    llama-nf4 mistral-window
done
echo "-- gradient checkpointing"
./goldens.py --tools "$tools" --compile-flag=--gradient-checkpointing \
  llama-nf4 qwen2-nf4 llama-packed llama-dropout
echo "-- inputs of adapters in 8 bits"
./lora_int8.py --tools "$tools"
./lora_int8.py --tools "$tools" --target cuda llama-nf4
echo "-- adapters in PEFT"
# Not the cases whose families or masks came after Debian's torch.
../../.venv/peft/bin/python peft_load.py --tools "$tools" gpt2 gpt2-bias-all \
  gpt2-nf4 llama-embed llama-embed-tied llama-lora llama-nf4 llama-olora \
  llama-packed llama-patterns llama-pissa llama-tokens-nf4 llama-tokens-tied \
  mistral-window qwen2-bias qwen2-nf4
echo "-- every two of family, format, adapter and ranks"
./covering.py --tools "$tools" --peft ../../.venv/peft/bin/python
echo "-- dropout with the same masks in PyTorch"
../../.venv/peft/bin/python dropout_replay.py --tools "$tools" llama \
  llama-nf4-ranks qwen2-nf4-ranks llama-dora llama-neftune
# Not in Debian's torch, or not in the transformers that goes with it.
./dropout_replay.py --tools "$tools" --masks llama3-targets qwen3-nf4-ranks gpt2 \
  gemma2-neftune

echo "-- CUDA on the software platform"
./goldens.py --tools "$tools" --target cuda --ranks 1 --jobs 2
./goldens.py --tools "$tools" --target cuda --ranks 1 --bf16 --jobs 2
./covering.py --tools "$tools" --target cuda --every 12
echo "-- cuDNN's attention, and our own in its place"
./goldens.py --tools "$tools" --target cuda --ranks 1 --bf16 \
  --kernels attention.cudnn,attention_grad.cudnn mistral-packed
./goldens.py --tools "$tools" --target cuda --ranks 1 --bf16 \
  --run-flag=--disable-kernels \
  --run-flag=attention.cudnn,attention_grad.cudnn \
  --kernels "attention.cuda (planned: .cudnn),attention_grad.cuda (planned: .cudnn)" \
  mistral-packed
for pass in assign-queues concat-siblings round-adapters; do
  ./goldens.py --tools "$tools" --target cuda --ranks 1 \
    --compile-flag=--disable-pass=$pass llama-nf4
done
echo "-- the embedding in host memory"
./goldens.py --tools "$tools" --target cuda --ranks 1 \
  --compile-flag=--offload-embedding=true llama-nf4
./cuda_platform.py --tools "$tools"
./padding_free.py --tools "$tools" --target cuda
./reproducible.py --tools "$tools" --target cuda
echo "-- what a step of 32 layers asks of the driver"
./cuda_step.py --tools "$tools"
echo "-- weights decoded ahead, in any order of the queues"
./cuda_platform.py --tools "$tools" --case prequantized-bnb --faults 0
./cuda_platform.py --tools "$tools" --case llama-nf4 --bf16 --faults 0
echo "-- plans of large models"
./plans.py --tools "$tools"
echo "-- published models, a few of them"
./published.py --tools "$tools" gemma-3-1b Phi-4-mini SmolLM3-3B Mixtral-8x7B
echo "-- what is recomputed, against the optimum"
./recompute_gap.py --tools "$tools"
echo "-- CUDA on several ranks"
./goldens.py --tools "$tools" --target cuda qwen3-ranks llama-dropout
./goldens.py --tools "$tools" --target cuda --ranks 4 \
  --run-flag=--cuda-graphs --run-flag=false llama-packed
./cuda_ranks.py --tools "$tools"
echo "-- algorithms of matrix products"
./gemm_table.py --tools "$tools"
echo "-- the GPU script on the software platform"
./gpu_script.py --tools "$tools"
