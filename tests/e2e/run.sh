#!/usr/bin/env bash
# SPDX-License-Identifier: MIT

# run.sh TOOLS: the end-to-end tests except the golden cases on their own ranks:
# derivative rules, promises, predictions, profiles, other ranks, bf16, each
# optimisation off, every pair of model and adapter properties.
set -euo pipefail
export tools
tools=$(realpath "$1")
cd "$(dirname "$0")"
peft=../../.venv/peft/bin/python

# The commands of a test: one per line, in the order in which they start.
commands() {
  # Tests that mostly wait for clocks and networks: a lane of their own.
  chain supervision slurm jobset hosts calibration watching checkpoints resuming
  # Plans of large models, which take a core for minutes.
  run plans.py

  # Every pair of family, format, adapter and ranks.
  run covering.py --peft $peft
  # CUDA on the software platform; matrix.py has all cases.
  goldens --target cuda --ranks 1 --every 2
  goldens --target cuda --ranks 1 --bf16 --every 4
  run covering.py --target cuda --every 12
  # cuDNN's attention, and our own instead.
  goldens --target cuda --ranks 1 --bf16 \
    --kernels attention.cudnn,attention_grad.cudnn mistral-packed
  goldens --target cuda --ranks 1 --bf16 --run-flag=--disable-kernels \
    --run-flag=attention.cudnn,attention_grad.cudnn --kernels \
    "'attention.cuda (planned: .cudnn),attention_grad.cuda (planned: .cudnn)'" \
    mistral-packed
  for pass in assign-queues concat-siblings reorder-accumulation round-adapters; do
    goldens --target cuda --ranks 1 --compile-flag=--disable-pass=$pass \
      llama-nf4
  done
  # The embedding in host memory.
  goldens --target cuda --ranks 1 --compile-flag=--offload-embedding=true \
    llama-nf4
  # Everything else that may be in host memory.
  goldens --target cuda --ranks 1 --compile-flag=--offload=base,optimizer \
    llama-nf4 qwen3-ranks llama-embed-tied gptoss-mxfp4
  goldens --target cuda --ranks 2 --compile-flag=--parallel=fsdp=2 \
    --compile-flag=--offload=base mixtral-balance llama-embed-tied qwen3-ranks
  for mesh in ep=2 fsdp=2,ep=2; do
    goldens --target cuda --ranks 2 --compile-flag=--parallel=$mesh \
      --compile-flag=--offload=base mixtral-balance
  done
  for axis in tp cp pp; do
    goldens --target cuda --parallel $axis=2 --compile-flag=--offload=base \
      qwen3-ranks
  done
  goldens --target cuda --ranks 2 --compile-flag=--parallel=zero2=2 \
    --compile-flag=--offload=base,optimizer,activations \
    --compile-flag=--copied-activations=all qwen3-ranks
  # Saved activations are copied even if the GPU is idle meanwhile.
  goldens --target cuda --ranks 1 --compile-flag=--offload=activations \
    --compile-flag=--copied-activations=all llama-nf4 llama-dropout
  goldens --target cuda --ranks 1 --bf16 --compile-flag=--offload=activations \
    --compile-flag=--copied-activations=all \
    --compile-flag=--gradient-checkpointing gptoss-mxfp4
  run cuda_platform.py
  run padding_free.py --target cuda
  run reproducible.py --target cuda
  # Driver calls of a step of 32 layers.
  run cuda_step.py
  # Weights decoded ahead, in any order of the queues, whether copied before or
  # not, and activations copied there and back.
  run cuda_platform.py --case prequantized-bnb --faults 0
  run cuda_platform.py --case llama-nf4 --bf16 --faults 0 \
    --offload base,optimizer,activations
  # CUDA on several ranks.
  goldens --target cuda qwen3-ranks llama-dropout
  goldens --target cuda --ranks 4 --run-flag=--cuda-graphs --run-flag=false \
    llama-packed
  run cuda_ranks.py
  # GEMM algorithms.
  run gemm_table.py
  # The GPU script on the software platform.
  run gpu_script.py

  for script in gradients partition nonfinite promises padding_free reproducible \
    base_cache optimizers full routers trained_tokens sweep report \
    compression power_sgd; do
    run $script.py
  done
  goldens --ranks 1 llama-dropout qwen3-ranks
  goldens --ranks 2 --run-flag=--rank-speeds --run-flag=3,1 qwen3-ranks \
    llama-dropout
  goldens --ranks 2 llama-muon-full
  goldens --bf16 --every 2
  for pass in fuse-lora fuse-accumulate rematerialize plan-dequant fuse-rows \
    bucket-gradients assign-queues; do
    goldens --compile-flag=--disable-pass=$pass llama-nf4 qwen3-ranks \
      llama-dropout llama-full
  done
  # Weights decoded in each form.
  for form in panel scratch resident; do
    goldens --compile-flag=--dequant=$form llama-nf4 mistral-window
  done
  goldens --compile-flag=--gradient-checkpointing llama-nf4 qwen2-nf4 \
    llama-packed llama-dropout
  # Adapter inputs in 8 bits.
  run lora_int8.py
  run lora_int8.py --target cuda llama-nf4
  layouts

  # Adapters in PEFT, except families or masks newer than Debian's torch.
  in_peft peft_load.py gpt2 gpt2-bias-all gpt2-nf4 llama-embed \
    llama-embed-tied llama-lora llama-nf4 llama-olora llama-packed \
    llama-patterns llama-pissa llama-tokens-nf4 llama-tokens-tied \
    mistral-window qwen2-bias qwen2-nf4
  # Dropout with the same masks in PyTorch; without it, if Debian's torch, or
  # the transformers that fits it, lacks a family.
  in_peft dropout_replay.py llama llama-nf4-ranks qwen2-nf4-ranks llama-dora \
    llama-neftune
  run dropout_replay.py --masks llama3-targets qwen3-nf4-ranks gpt2 \
    gemma2-neftune
  # A few published models; the recompute plans against the optimum.
  run published.py gemma-3-1b Phi-4-mini SmolLM3-3B Mixtral-8x7B
  run recompute_gap.py
}

# The axes of sharding.
layouts() {
  # The base.
  run covering.py --fsdp --every 2
  run covering.py --fsdp --target cuda --every 8
  goldens --ranks 2 --compile-flag=--parallel=fsdp=2 \
    --compile-flag=--divide-tables=true llama-dpo-nf4 llama-dropout \
    llama-embed-tied llama-packed llama-tokens-nf4 mixtral-balance \
    prequantized-bnb
  goldens --ranks 4 --compile-flag=--parallel=fsdp=2 \
    --compile-flag=--divide-tables=true qwen3-ranks
  goldens --ranks 2 --compile-flag=--parallel=fsdp=2 \
    --compile-flag=--disable-pass=schedule-gathers llama-nf4
  run shards.py
  # Trainable parameters.
  goldens --ranks 2 --compile-flag=--parallel=fsdp=2 llama-full llama-embed
  goldens --ranks 2 --compile-flag=--parallel=zero2=2 llama-embed-tied \
    llama-dora llama-pissa
  goldens --target cuda --ranks 2 --bf16 --compile-flag=--parallel=fsdp=2 \
    llama-full gpt2-full
  goldens --target cuda --ranks 4 --compile-flag=--parallel=zero2=2 qwen3-ranks
  run pieces.py
  # Updates.
  for target in "" "--target cuda" "--target cuda --bf16"; do
    goldens --ranks 2 --compile-flag=--parallel=zero1=2 $target llama-full \
      llama-embed-tied qwen3-ranks
  done
  goldens --target cuda --ranks 4 --compile-flag=--parallel=fsdp=2,zero1=2 \
    qwen3-ranks
  # Matmuls.
  run layouts.py --every 2
  run layouts.py llama2
  run layouts.py --target cuda qwen3moe
  goldens --parallel tp=2 qwen3-ranks phi3-nf4 llama-full mixtral llama-dpo \
    llama-lora-bias gpt2-bias-all llama-int8
  for mesh in tp=2 tp=2,pp=2 tp=2,cp=2; do
    goldens --parallel $mesh --compile-flag=--sequence-parallel=true \
      qwen3-ranks gptoss llama-dpo llama-full
  done
  goldens --parallel tp=2 --compile-flag=--sequence-parallel=true --target cuda \
    --bf16 qwen3-ranks phi3-nf4
  goldens --parallel tp=2 --compile-flag=--sequence-parallel=true \
    llama-embed-tied gpt2-bias-all llama-lora-bias mixtral-balance qwen2moe-nf4
  goldens --parallel tp=2 --target cuda --bf16 qwen3-ranks phi3-nf4 mixtral \
    llama-int8
  # Sequences.
  run layouts.py --axis cp --every 3
  run layouts.py --axis cp --target cuda --every 18
  goldens --parallel cp=2 qwen3-ranks llama-dropout gptoss-mxfp4 llama-packed \
    llama-dpo llama-orpo mixtral-balance llama-dora
  # Padded heads.
  goldens --parallel cp=8 gemma3-nf4 llama-dpo
  goldens --parallel cp=8 --target cuda gpt2
  goldens --parallel cp=2 --target cuda --bf16 qwen3-ranks gptoss-mxfp4 \
    llama-packed llama-orpo
  # Experts.
  run layouts.py --axis ep mixtral gptoss
  run layouts.py --axis ep --target cuda --every 4
  for target in "" "--target cuda --bf16"; do
    goldens --ranks 2 --compile-flag=--parallel=ep=2 $target mixtral-balance
  done
  # Layers.
  run layouts.py --axis pp --every 3
  run layouts.py --axis pp --target cuda --every 18
  goldens --parallel pp=2 qwen3-ranks llama-dropout gptoss-mxfp4 llama-packed \
    llama-dpo llama3-tied mixtral llama-dora llama-pissa
  goldens --parallel pp=2 --target cuda --bf16 qwen3-ranks gptoss-mxfp4 \
    llama-dpo llama-pissa
  goldens --parallel pp=2 --compile-flag=--num-micro-batches=1 llama-kto \
    mixtral-balance llama-int8-activations
  goldens --parallel pp=2 --compile-flag=--pipeline-schedule=gpipe llama-nf4
  goldens --parallel pp=2 \
    --compile-flag=--num-virtual-stages-per-pipeline-rank=2 gptoss smollm3-nf4
  # Several of these axes.
  goldens --parallel tp=2,pp=2 qwen3-ranks phi3-nf4 llama-dpo gptoss
  goldens --parallel tp=2,cp=2 qwen3-ranks gptoss llama-adamw8bit
  goldens --parallel tp=2,cp=2 --target cuda gptoss
  goldens --parallel cp=2,pp=2 llama-dropout llama-dpo gptoss
  goldens --parallel fsdp=2,tp=2,cp=2 gptoss
  for mesh in zero2=2,tp=2 fsdp=2,tp=2 zero2=2,pp=2 fsdp=2,pp=2 \
    zero2=2,tp=2,pp=2 fsdp=2,tp=2,pp=2; do
    goldens --ranks 2 --parallel $mesh llama-full llama-embed-tied
  done
  goldens --parallel pp=2 \
    --compile-flag=--device-map=../Inputs/two_devices.json llama-nf4 llama3-tied
  run layouts.py --axis pp smollm3
}

run() { echo "./$1 --tools \"\$tools\" ${*:2}"; }
in_peft() { echo "$peft $(run "$@")"; }
goldens() { run goldens.py "$@"; }
chain() {
  local all=true
  for script; do all+=" && $(run "$script.py")"; done
  echo "$all"
}

# Measurements of time run alone.
./predict.py --tools "$tools"
./step_profile.py --tools "$tools"
# The CPU benchmarks with tiny shapes.
../../bench/cpu.py --fast --tools "$tools"
# All others use about one thread: two run concurrently, next to the lane that
# waits.
commands | ./lanes.py 3
