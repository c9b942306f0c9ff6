# SPDX-License-Identifier: MIT

# The list of tests, except unit and text tests, which are in CMakeLists.txt.
# Each line is a test of ctest: its name, its tier, the seconds that it takes on
# an idle core, and its command.
#
#   quick  ./test.sh runs these tests (no label)
#   full   ./test.sh full runs these and the quick tests (label full)
#   soak   ./test.sh soak runs only these tests (label soak)
#
# docs/internals/testing.md describes which tests belong to which tier.

# test_case(name tier seconds command...) adds a test. ctest starts long tests
# first. The timeout allows for slow or busy machines.
function(test_case name tier seconds)
  add_test(NAME ${name} COMMAND ${ARGN}
           WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/e2e)
  math(EXPR timeout "300 + 20 * ${seconds}")
  set_tests_properties(${name} PROPERTIES COST ${seconds} TIMEOUT ${timeout})
  if(NOT tier STREQUAL quick)
    set_tests_properties(${name} PROPERTIES LABELS ${tier})
  endif()
endfunction()
set(tools --tools ${CMAKE_BINARY_DIR}/bin)
# e2e() runs a script in install.sh's Python environment, in_peft() in PEFT's,
# and in_llama() in llama.cpp's.
function(e2e name tier seconds script)
  test_case(${name} ${tier} ${seconds} ${Python3_EXECUTABLE} ${script} ${tools}
            ${ARGN})
endfunction()
set(peft ${CMAKE_SOURCE_DIR}/.venv/peft/bin/python)
function(in_peft name tier seconds script)
  test_case(${name} ${tier} ${seconds} ${peft} ${script} ${tools} ${ARGN})
endfunction()
set(llama ${CMAKE_SOURCE_DIR}/.venv/llama/bin/python)
function(in_llama name tier seconds)
  test_case(${name} ${tier} ${seconds} ${llama} gguf_export.py ${tools} ${ARGN})
endfunction()
# Adds a test of golden cases. The arguments are flags and cases of goldens.py.
function(goldens name tier seconds)
  e2e(golden-${name} ${tier} ${seconds} goldens.py ${ARGN})
endfunction()
function(unit_tests folder tier seconds)
  file(GLOB files CONFIGURE_DEPENDS
       ${CMAKE_CURRENT_SOURCE_DIR}/tools/${folder}/test_*.py)
  foreach(file ${files})
    get_filename_component(stem ${file} NAME_WE)
    string(REPLACE test_ "" stem ${stem})
    test_case(${folder}-${stem} ${tier} ${seconds} ${Python3_EXECUTABLE}
              -m unittest discover
              -s ${CMAKE_CURRENT_SOURCE_DIR}/tools/${folder} -p test_${stem}.py)
  endforeach()
endfunction()

# ------------------------------------------------------- programs in Python
unit_tests(qlora-data quick 3)
set(rouge_pairs ${CMAKE_CURRENT_SOURCE_DIR}/tools/qlora-data/rouge_pairs.py)
test_case(rouge-pairs quick 6 ${Python3_EXECUTABLE} ${rouge_pairs})
test_case(rouge-pairs-many full 60 ${Python3_EXECUTABLE} ${rouge_pairs} 10000)
unit_tests(qlora quick 5)

# --------------------------------------------- golden cases, one by one (CPU)
file(GLOB cases CONFIGURE_DEPENDS
     ${CMAKE_CURRENT_SOURCE_DIR}/Inputs/goldens/*/case.json)
foreach(case ${cases})
  get_filename_component(folder ${case} DIRECTORY)
  get_filename_component(case ${folder} NAME)
  goldens(${case} quick 2 ${case})
endforeach()

# ------------------------------------------------------------- qlora serve
e2e(serve-clients quick 60 serve_clients.py)
e2e(serve-load quick 20 serve_load.py --requests 400)
e2e(serve-load-long soak 300 serve_load.py --requests 10000)

# ------------------------------------------------ measurements of time, alone
e2e(predict full 30 predict.py)
e2e(step-profile full 10 step_profile.py)
# The CPU benchmarks with tiny shapes.
e2e(bench-cpu full 60 ../../bench/cpu.py --fast)
e2e(bench-generate full 30 ../../bench/generate.py --fast)
set_tests_properties(predict step-profile bench-cpu bench-generate
                     PROPERTIES RUN_SERIAL ON)

# ------------------------- tests that mostly wait for clocks and for networks
e2e(supervision soak 60 supervision.py)
e2e(slurm soak 120 slurm.py)
e2e(jobset soak 60 jobset.py)
e2e(hosts soak 180 hosts.py)
e2e(calibration full 30 calibration.py)
set_tests_properties(supervision slurm jobset hosts calibration PROPERTIES
                     RESOURCE_LOCK hosts)
e2e(watching full 20 watching.py)
e2e(checkpoint-kills soak 60 resume_exact.py kills)
e2e(checkpoint-flips quick 20 resume_exact.py flips signals)
e2e(resuming quick 40 resume_changed.py)

# ------------------------------------------------------- plans of large models
e2e(plans quick 20 plans.py tightest_8b head_chunks auto_limit)
e2e(plans-long full 60 plans.py long_context saved_on_the_host shared_context
    trained_whole chosen_layouts)
e2e(plans-70b soak 120 plans.py in_pieces)
# Models from the Hub, then recomputation plans compared with the optimum.
e2e(published soak 60 published.py gemma-3-1b Phi-4-mini SmolLM3-3B
    Mixtral-8x7B)
e2e(recompute-gap full 60 recompute_gap.py)

# ------------------------------- pairs of family, format, adapter and ranks
# covering, covering-1 and covering-2 together train all rows. The other tests
# train a sample, every N-th row.
e2e(covering quick 60 covering.py --jobs 1 --every 3 --peft ${peft})
foreach(first 1 2)
  e2e(covering-${first} full 60 covering.py --jobs 1 --every 3 --first ${first}
      --peft ${peft})
endforeach()
e2e(covering-cuda full 30 covering.py --jobs 1 --target cuda --every 12)
e2e(covering-fsdp full 60 covering.py --jobs 1 --fsdp --every 2)
e2e(covering-fsdp-cuda full 20 covering.py --jobs 1 --fsdp --target cuda
    --every 8)

# ---------------------------------------- gradients, options and their effects
e2e(gradients quick 30 gradients.py)
e2e(partition quick 60 partition.py)
e2e(nonfinite quick 5 nonfinite.py)
e2e(promises quick 20 promises.py)
e2e(step-packing quick 20 step_packing.py)
e2e(reproducible full 40 reproducible.py)
e2e(base-cache full 40 base_cache.py)
e2e(optimizers quick 12 optimizers.py)
e2e(full-fine-tuning quick 10 full.py)
e2e(routers quick 5 routers.py)
e2e(trained-tokens quick 3 trained_tokens.py)
# The folders of examples/, and the commands of docs/data.md.
e2e(examples quick 45 examples.py)
# Examples of axolotl and LLaMA-Factory, three steps of each kind.
e2e(foreign-examples full 150 foreign_examples.py)
e2e(sweep quick 12 sweep.py)
e2e(report full 16 report.py)
e2e(compression full 30 compression.py)
e2e(power-sgd full 30 power_sgd.py)
# LoRA inputs that are saved in 8 bits for the backward pass.
e2e(lora-int8 quick 16 lora_int8.py)
e2e(lora-int8-cuda full 10 lora_int8.py --target cuda llama-nf4)

# Answers during training: the same on all ranks, and no change of training.
e2e(answers quick 60 answers.py)

# Golden answers of transformers, from the entries prefill and decode.
e2e(generation quick 40 generation.py)
e2e(generation-cuda quick 30 generation.py --target cuda llama3-tied
    mistral-window gptoss-mxfp4)
e2e(generation-one-slot full 40 generation.py --slots 1 --chunk 5)
e2e(generation-seven-slots full 40 generation.py --slots 7 --chunk 64)
e2e(generation-bf16 quick 20 generation.py --bf16 llama3-tied mixtral)
e2e(generation-bf16-cuda quick 20 generation.py --bf16 --target cuda qwen2-nf4)
e2e(generation-bf16-all full 40 generation.py --bf16)

goldens(one-rank quick 3 --ranks 1 llama-dropout qwen3-ranks)
goldens(rank-speeds quick 3 --ranks 2 --run-flag=--rank-speeds --run-flag=3,1
        qwen3-ranks llama-dropout)
goldens(muon quick 2 --ranks 2 llama-muon-full)
goldens(bf16 full 40 --bf16 --every 2)
# Golden cases with each optional pass disabled.
foreach(pass fuse-lora fuse-accumulate rematerialize plan-dequant fuse-rows
        bucket-gradients assign-queues)
  goldens(without-${pass} full 5 --compile-flag=--disable-pass=${pass}
          llama-nf4 qwen3-ranks llama-dropout llama-full)
endforeach()
# Golden cases with each form of --dequantize.
foreach(form tiled per-use once)
  goldens(dequant-${form} quick 2 --compile-flag=--dequantize=${form} llama-nf4
          mistral-window)
endforeach()
goldens(checkpointing quick 4 --compile-flag=--gradient-checkpointing llama-nf4
        qwen2-nf4 llama-packed llama-dropout)

# Loads adapters in PEFT, except those that need a newer torch than Debian's.
in_peft(peft-load full 30 peft_load.py gpt2 gpt2-bias-all gpt2-nf4 llama-embed
        llama-embed-tied llama-lora llama-nf4 llama-olora llama-packed
        llama-patterns llama-pissa llama-tokens-nf4 llama-tokens-tied
        mistral-window qwen2-bias qwen2-nf4)
# Merges adapters into models. In PEFT's environment, transformers loads them.
e2e(export quick 40 export.py gpt2 gpt2-nf4 gemma2-tokens-nf4 gptoss-mxfp4
    llama-dora llama-embed-tied llama-int8 llama-nf4 llama-pissa mixtral
    prequantized-bnb qwen3moe-nf4)
e2e(export-faults quick 10 export.py --faults)
e2e(export-all full 60 export.py gemma2-nf4 gpt2-bias-all gpt2-dora llama-awq
    llama-embed llama-fp8 llama-gptq llama-loftq llama-olora
    llama-patterns llama-pissa-nf4 llama-tokens-nf4 llama3-tied mixtral-gptq
    phi3-nf4 qwen2moe-nf4 stablelm-nf4)
# Quantizes merged models, and compares with what bitsandbytes made of the same
# bases.
e2e(export-quantized quick 40 export_quantized.py gpt2-nf4:nf4 gptoss:mxfp4
    llama-lora:fp8 llama-nf4:nf4 mixtral:fp8)
e2e(export-quantized-faults quick 10 export_quantized.py --faults)
e2e(export-quantized-all full 90 export_quantized.py gemma2-nf4:nf4 gpt2:nf4
    gptoss-mxfp4:mxfp4 gptoss:nf4 llama-fp8:fp8 llama-gptq:nf4
    llama-patterns:fp8 llama3-tied:fp8 phi3-nf4:nf4 prequantized-bnb:nf4
    qwen2moe-nf4:nf4 smollm3-nf4:fp8)
in_peft(export-logits full 60 export.py --logits gpt2 gpt2-nf4 llama-embed
        llama-embed-tied llama-nf4 llama-patterns llama-tokens-nf4
        mistral-window qwen2-bias qwen2-nf4)
# Exports for llama.cpp, which loads the files.
in_llama(gguf quick 30 --types f16,q4_k_m llama-nf4 gpt2 mixtral phi3-nf4)
in_llama(gguf-refusals quick 20 --refusals)
in_llama(gguf-demo quick 10 --demo)
in_llama(gguf-quality full 10 --quality)
in_llama(gguf-all full 100 gemma2-nf4 gemma3-nf4 gemma3-wrapped-nf4 gpt2-dora
         gptoss gptoss-mxfp4 granite-nf4 llama-dora llama-embed-tied llama-lora
         llama-patterns llama-pissa llama-tokens-nf4 llama-yarn llama3-tied
         mistral-window olmo2-nf4 qwen2-bias qwen2-nf4 qwen3-ranks qwen3moe-nf4
         smollm3-nf4 stablelm starcoder2)
in_llama(gguf-stored full 30 llama-awq llama-fp8 llama-gptq llama-int8
         prequantized-bnb)
# Replays dropout in PyTorch with the same masks. If Debian's torch or
# transformers does not have the family, only the masks are checked.
in_peft(dropout-replay full 40 dropout_replay.py llama llama-nf4-ranks
        qwen2-nf4-ranks llama-dora llama-neftune)
e2e(dropout-masks quick 10 dropout_replay.py --masks llama3-targets
    qwen3-nf4-ranks gpt2 gemma2-neftune)

# --------------------------------------------------- CUDA, software platform
set(on_cuda --target cuda)
goldens(cuda full 40 ${on_cuda} --ranks 1 --every 2)
goldens(cuda-bf16 full 20 ${on_cuda} --ranks 1 --bf16 --every 4)
# Every CUDA row of Kernels.def with every operand type.
e2e(kernel-cover quick 60 kernel_cover.py cp:mixtral-balance cp-bf16:llama-full
    tp:gptoss tp-bf16:mixtral-balance fsdp:llama-full
    one:llama-int8-activations,llama-apo-zero,gemma2-tokens-nf4,gpt2-dora
    one:llama-adamw8bit,llama-dora
    one-bf16:llama-int8-activations,mistral-packed,llama-apo-zero
    one-bf16:gemma2-tokens-nf4 panel:qwen3moe-nf4,mixtral
    panel-bf16:qwen3moe-nf4,gptoss-mxfp4)
# cuDNN's attention, and our own attention without cuDNN.
goldens(cuda-cudnn quick 2 ${on_cuda} --ranks 1 --bf16
        --kernels attention.cudnn,attention_grad.cudnn mistral-packed)
goldens(cuda-no-cudnn quick 2 ${on_cuda} --ranks 1 --bf16
        --run-flag=--disable-kernels
        --run-flag=attention.cudnn,attention_grad.cudnn --kernels
        "attention.cuda (planned: .cudnn),attention_grad.cuda (planned: .cudnn)"
        mistral-packed)
foreach(pass assign-queues concat-siblings reorder-accumulation round-adapters)
  goldens(cuda-without-${pass} full 2 ${on_cuda} --ranks 1
          --compile-flag=--disable-pass=${pass} llama-nf4)
endforeach()
# The embedding in host memory, then everything that --offload can place there.
goldens(cuda-offload-embedding quick 2 ${on_cuda} --ranks 1
        --compile-flag=--offload-embedding=true llama-nf4)
goldens(cuda-offload quick 5 ${on_cuda} --ranks 1
        --compile-flag=--offload=base,optimizer llama-nf4 qwen3-ranks
        llama-embed-tied gptoss-mxfp4)
goldens(cuda-offload-fsdp full 5 ${on_cuda} --ranks 2
        --compile-flag=--parallel=fsdp=2 --compile-flag=--offload=base
        mixtral-balance llama-embed-tied qwen3-ranks)
foreach(mesh ep=2 fsdp=2,ep=2)
  goldens(cuda-offload-${mesh} full 2 ${on_cuda} --ranks 2
          --compile-flag=--parallel=${mesh} --compile-flag=--offload=base
          mixtral-balance)
endforeach()
foreach(axis tp cp pp)
  goldens(cuda-offload-${axis} full 2 ${on_cuda} --parallel ${axis}=2
          --compile-flag=--offload=base qwen3-ranks)
endforeach()
goldens(cuda-offload-zero2 full 2 ${on_cuda} --ranks 2
        --compile-flag=--parallel=zero2=2
        --compile-flag=--offload=base,optimizer,activations
        --compile-flag=--offload-activations-policy=all qwen3-ranks)
# With this policy saved activations are copied even if the GPU must wait.
goldens(cuda-offload-activations quick 3 ${on_cuda} --ranks 1
        --compile-flag=--offload=activations
        --compile-flag=--offload-activations-policy=all llama-nf4 llama-dropout)
goldens(cuda-offload-checkpointing full 2 ${on_cuda} --ranks 1 --bf16
        --compile-flag=--offload=activations
        --compile-flag=--offload-activations-policy=all
        --compile-flag=--gradient-checkpointing gptoss-mxfp4)
e2e(cuda-platform quick 30 cuda_platform.py)
e2e(step-packing-cuda full 20 step_packing.py ${on_cuda})
e2e(reproducible-cuda full 40 reproducible.py ${on_cuda})
# Counts the driver calls of a step of 32 layers.
e2e(cuda-step full 15 cuda_step.py)
# Runs streams in every allowed order: with weights decoded ahead, and with
# weights and activations copied from and to the host.
e2e(cuda-platform-bnb full 20 cuda_platform.py --case prequantized-bnb)
e2e(cuda-platform-offload full 20 cuda_platform.py --case llama-nf4 --bf16
    --offload base,optimizer,activations)
# Several ranks of the software platform.
goldens(cuda-ranks quick 3 ${on_cuda} qwen3-ranks llama-dropout)
goldens(cuda-ranks-no-graphs full 2 ${on_cuda} --ranks 4
        --run-flag=--cuda-graphs --run-flag=false llama-packed)
e2e(cuda-ranks full 40 cuda_ranks.py)
# The choice of GEMM algorithms.
e2e(gemm-table full 20 gemm_table.py)
# bench/gpu.sh on the software platform.
e2e(gpu-script full 120 gpu_script.py)

# ------------------------------------------------------------ sharding, base
goldens(fsdp-tables full 8 --ranks 2 --compile-flag=--parallel=fsdp=2
        --compile-flag=--shard-embeddings=true llama-dpo-nf4 llama-dropout
        llama-embed-tied llama-packed llama-tokens-nf4 mixtral-balance
        prequantized-bnb)
goldens(fsdp quick 2 --ranks 4 --compile-flag=--parallel=fsdp=2
        --compile-flag=--shard-embeddings=true qwen3-ranks)
# Losses of tokens over shards of the vocabulary.
set(token_losses --ranks 2 --compile-flag=--parallel=fsdp=2
    --compile-flag=--shard-embeddings=true llama-dft llama-smooth
    gemma2-smooth)
goldens(fsdp-losses quick 3 ${token_losses})
goldens(fsdp-losses-cuda quick 5 ${on_cuda} ${token_losses})
goldens(fsdp-no-overlap full 2 --ranks 2 --compile-flag=--parallel=fsdp=2
        --compile-flag=--disable-pass=schedule-gathers llama-nf4)
e2e(shards full 120 shards.py)
# Sharded trainable parameters.
goldens(fsdp-trained quick 2 --ranks 2 --compile-flag=--parallel=fsdp=2
        llama-full llama-embed)
goldens(zero2 quick 3 --ranks 2 --compile-flag=--parallel=zero2=2
        llama-embed-tied llama-dora llama-pissa)
goldens(fsdp-cuda-bf16 full 3 ${on_cuda} --ranks 2 --bf16
        --compile-flag=--parallel=fsdp=2 llama-full gpt2-full)
goldens(zero2-cuda quick 2 ${on_cuda} --ranks 4
        --compile-flag=--parallel=zero2=2 qwen3-ranks)
e2e(pieces full 40 pieces.py)
# Sharded optimizer states.
set(zero1_cases --ranks 2 --compile-flag=--parallel=zero1=2 llama-full
    llama-embed-tied qwen3-ranks)
goldens(zero1 quick 3 ${zero1_cases})
goldens(zero1-cuda full 3 ${on_cuda} ${zero1_cases})
goldens(zero1-cuda-bf16 full 3 ${on_cuda} --bf16 ${zero1_cases})
goldens(fsdp-zero1-cuda quick 2 ${on_cuda} --ranks 4
        --compile-flag=--parallel=fsdp=2,zero1=2 qwen3-ranks)

# --------------------------------------------------------- sharding, matmuls
e2e(layouts full 60 layouts.py --every 2)
e2e(layouts-llama2 full 10 layouts.py llama2)
e2e(layouts-cuda full 10 layouts.py ${on_cuda} qwen3moe)
goldens(tp quick 2 --parallel tp=2 qwen3-ranks llama-full)
goldens(tp-rest full 6 --parallel tp=2 phi3-nf4 mixtral llama-dpo
        llama-lora-bias gpt2-bias-all llama-int8)
set(by_tokens --compile-flag=--sequence-parallel=true)
foreach(mesh tp=2 tp=2,pp=2 tp=2,cp=2)
  goldens(tokens-${mesh} full 5 --parallel ${mesh} ${by_tokens} qwen3-ranks
          gptoss llama-dpo llama-full)
endforeach()
goldens(tokens-cuda-bf16 full 3 --parallel tp=2 ${by_tokens} ${on_cuda} --bf16
        qwen3-ranks phi3-nf4)
goldens(tokens quick 5 --parallel tp=2 ${by_tokens} llama-embed-tied
        gpt2-bias-all llama-lora-bias mixtral-balance qwen2moe-nf4)
goldens(tp-cuda-bf16 quick 1 --parallel tp=2 ${on_cuda} --bf16 qwen3-ranks)
goldens(tp-cuda-bf16-rest full 3 --parallel tp=2 ${on_cuda} --bf16 phi3-nf4
        mixtral llama-int8)

# ------------------------------------------------------- sharding, sequences
e2e(layouts-cp full 30 layouts.py --axis cp --every 3)
e2e(layouts-cp-cuda full 10 layouts.py --axis cp ${on_cuda} --every 18)
goldens(cp quick 2 --parallel cp=2 qwen3-ranks llama-packed)
goldens(cp-rest full 6 --parallel cp=2 llama-dropout gptoss-mxfp4 llama-dpo
        llama-orpo mixtral-balance llama-dora)
# With cp=8, attention heads are padded to a multiple of 8.
goldens(cp8 full 4 --parallel cp=8 gemma3-nf4 llama-dpo)
goldens(cp8-cuda full 3 --parallel cp=8 ${on_cuda} gpt2)
goldens(cp-cuda-bf16 quick 1 --parallel cp=2 ${on_cuda} --bf16 qwen3-ranks)
goldens(cp-cuda-bf16-rest full 3 --parallel cp=2 ${on_cuda} --bf16 gptoss-mxfp4
        llama-packed llama-orpo)

# --------------------------------------------------------- sharding, experts
e2e(layouts-ep full 20 layouts.py --axis ep mixtral gptoss)
e2e(layouts-ep-cuda full 10 layouts.py --axis ep ${on_cuda} --every 4)
set(ep_cases --ranks 2 --compile-flag=--parallel=ep=2 mixtral-balance)
goldens(ep quick 2 ${ep_cases})
goldens(ep-cuda-bf16 quick 2 ${on_cuda} --bf16 ${ep_cases})

# ---------------------------------------------------------- sharding, layers
e2e(layouts-pp full 40 layouts.py --axis pp --every 3)
e2e(layouts-pp-cuda full 10 layouts.py --axis pp ${on_cuda} --every 18)
e2e(layouts-pp-smollm3 full 10 layouts.py --axis pp smollm3)
goldens(pp quick 2 --parallel pp=2 qwen3-ranks llama3-tied)
goldens(pp-rest full 7 --parallel pp=2 llama-dropout gptoss-mxfp4 llama-packed
        llama-dpo mixtral llama-dora llama-pissa)
goldens(pp-cuda-bf16 quick 1 --parallel pp=2 ${on_cuda} --bf16 qwen3-ranks)
goldens(pp-cuda-bf16-rest full 3 --parallel pp=2 ${on_cuda} --bf16 gptoss-mxfp4
        llama-dpo llama-pissa)
goldens(pp-one-chunk full 3 --parallel pp=2
        --compile-flag=--num-micro-batches=1 llama-kto mixtral-balance
        llama-int8-activations)
goldens(pp-gpipe full 1 --parallel pp=2
        --compile-flag=--pipeline-schedule=gpipe llama-nf4)
goldens(pp-virtual full 2 --parallel pp=2
        --compile-flag=--num-virtual-stages-per-pipeline-rank=2 gptoss
        smollm3-nf4)
goldens(pp-device-map full 2 --parallel pp=2
        --compile-flag=--device-map=../Inputs/two_devices.json llama-nf4
        llama3-tied)

# ----------------------------------------------------- sharding, several axes
goldens(tp-pp full 4 --parallel tp=2,pp=2 qwen3-ranks phi3-nf4 llama-dpo gptoss)
goldens(tp-cp full 3 --parallel tp=2,cp=2 qwen3-ranks gptoss llama-adamw8bit)
goldens(tp-cp-cuda full 2 --parallel tp=2,cp=2 ${on_cuda} gptoss)
goldens(cp-pp full 3 --parallel cp=2,pp=2 llama-dropout llama-dpo gptoss)
goldens(fsdp-tp-cp full 2 --parallel fsdp=2,tp=2,cp=2 gptoss)
foreach(mesh zero2=2,tp=2 fsdp=2,tp=2 zero2=2,pp=2 fsdp=2,pp=2 zero2=2,tp=2,pp=2
        fsdp=2,tp=2,pp=2)
  goldens(${mesh} full 3 --ranks 2 --parallel ${mesh} llama-full
          llama-embed-tied)
endforeach()

# ----------------------------------------- the runtime alone, under sanitizers
# sanitized(tree tier seconds sanitizers build test...) adds a test named
# `build`, which builds each `test` in the folder build/`tree`, without LLVM. It
# also adds a test named `tree`-`test` that runs each of them.
function(sanitized tree tier seconds sanitizers build)
  set(folder ${CMAKE_BINARY_DIR}/${tree})
  test_case(${build} ${tier} ${seconds}
            ${CMAKE_CURRENT_SOURCE_DIR}/sanitized.sh ${folder} ${sanitizers}
            ${ARGN})
  set_tests_properties(${build} PROPERTIES PROCESSORS 2 RESOURCE_LOCK ${tree}
                       FIXTURES_SETUP ${build})
  foreach(test ${ARGN})
    test_case(${tree}-${test} ${tier} 20 ${CMAKE_CTEST_COMMAND} --test-dir
              ${folder} --output-on-failure -R ^${test}$)
    set_tests_properties(${tree}-${test} PROPERTIES FIXTURES_REQUIRED ${build})
  endforeach()
endfunction()
sanitized(asan quick 200 address,undefined asan-build RuntimeBaseTests
          RuntimeOptionsTests RuntimeModuleTests RuntimeWeightsTests
          RuntimeDataTests RuntimeRanksTests)
sanitized(asan full 300 address,undefined asan-build-rest RuntimeKernelsTests
          RuntimeDeviceTests RuntimeGenerateTests RuntimePredictTests
          RuntimeWatchTests RuntimeCheckpointTests RuntimeSessionTests
          RuntimeExtrasTests KernelTests FrontendTests CudaPlatformTests)
# Runs KernelTests again with cuDNN's gradient that sums in a fixed order.
test_case(asan-CudnnOrdered full 10 ${CMAKE_CTEST_COMMAND} --test-dir
          ${CMAKE_BINARY_DIR}/asan --output-on-failure -R ^CudnnOrdered$)
set_tests_properties(asan-CudnnOrdered PROPERTIES
                     FIXTURES_REQUIRED asan-build-rest)
# oneDNN's libgomp is not instrumented: with one thread it has no barriers that
# ThreadSanitizer could report as races. Jobs of several ranks on the software
# CUDA platform have time limits in seconds, too short for ThreadSanitizer. Test
# folders whose code starts no threads are left out.
set(threaded RuntimeBaseTests RuntimeDeviceTests RuntimeRanksTests
    RuntimeWeightsTests RuntimeDataTests RuntimeCheckpointTests
    RuntimeSessionTests)
sanitized(tsan soak 300 thread tsan-build ${threaded})
list(TRANSFORM threaded PREPEND tsan- OUTPUT_VARIABLE threaded)
# Under ThreadSanitizer no call is made to fail (runtime/FaultCalls.cpp), so
# these tests are left out.
set(faults *Faults*:AtomicFile.*:ListFolder.*:Flush.*:Output.WithoutLocks*)
string(APPEND faults :Supervisor.ARankThatCannotBeStarted*)
set_tests_properties(${threaded} PROPERTIES ENVIRONMENT
  "OMP_NUM_THREADS=1;GTEST_FILTER=-CudaRanks*:CudaDeviceRanks*:Nccl*:${faults}")

# ------------------------------------------------ longer versions of tests
e2e(matrix soak 14400 matrix.py)
e2e(hosts-rounds soak 3600 hosts.py --rounds 100)
set_tests_properties(hosts-rounds PROPERTIES RESOURCE_LOCK hosts)
e2e(checkpoints-long soak 3600 resume_exact.py --kills 200 --flips 2000
    --steps 60)
e2e(partition-all soak 300 partition.py --all)
# Makes a 6 GB Python environment with the versions that made the references.
e2e(peft-live soak 1200 peft_load_all.py)
# Loads quantized exports there, with bitsandbytes and compressed-tensors.
e2e(export-quantized-live soak 1200 export_quantized.py --live gemma2-nf4:nf4
    gemma3-wrapped-nf4:fp8 gemma3-wrapped-nf4:nf4 gpt2:nf4 gptoss:mxfp4
    gptoss:nf4 gptoss-mxfp4:mxfp4 llama-lora:fp8 llama-nf4:nf4 mixtral:fp8
    mixtral:nf4 phi3-nf4:nf4 qwen2moe-nf4:fp8 qwen2moe-nf4:nf4
    qwen3moe-nf4:nf4)
set_tests_properties(peft-live export-quantized-live
                     PROPERTIES RESOURCE_LOCK peft-live)
# Tests each version of cuDNN. A version that is not installed takes 0.5 GB.
test_case(cudnn-plans-long soak 300 ${CMAKE_SOURCE_DIR}/scripts/cudnn_plans.sh)
# Runs README's two commands on a fresh Debian 12, as root.
test_case(fresh-root soak 4800
          ${CMAKE_CURRENT_SOURCE_DIR}/tools/install/fresh_root.sh --clone)
# Runs the lines of the Dockerfile there.
test_case(image soak 300
          ${CMAKE_CURRENT_SOURCE_DIR}/tools/install/fresh_root.sh --image)

# ------------------------------- unit and text tests that are not short
foreach(each RuntimeSessionTests:100 lit:100 KernelTests:75 cuda-units:70
        one-definition:50 CudnnPlanTests-9.19.0.56:40 wheel:80 install:30
        RuntimeRanksTests:25 sass:25 RuntimeWeightsTests:15
        RuntimePredictTests:12 docs:12)
  string(REGEX MATCH "^(.*):(.*)$" _ ${each})
  set_tests_properties(${CMAKE_MATCH_1} PROPERTIES COST ${CMAKE_MATCH_2})
endforeach()
set_tests_properties(wheel PROPERTIES LABELS full)

# Programs and the Python environment come first on each test's PATH.
get_property(listed DIRECTORY PROPERTY TESTS)
set_property(TEST ${listed} APPEND PROPERTY ENVIRONMENT_MODIFICATION
  PATH=path_list_prepend:${CMAKE_BINARY_DIR}/bin
  PATH=path_list_prepend:${CMAKE_SOURCE_DIR}/.venv/bin)
