// SPDX-License-Identifier: MIT

// Options of qloracc that are not training options. `qlora` accepts them too
// and passes them on.

#ifndef QLORA_TOOLS_QLORACC_COMPILEROPTIONS_H
#define QLORA_TOOLS_QLORACC_COMPILEROPTIONS_H

#include "runtime/Options/OptionTable.h"

namespace qlora {

/// --help-all prints this many rows of kCompilerOptions before all others.
inline constexpr size_t kCompilerOptionsFirst = 4;

namespace compiler_options {
using enum OptionType;
using enum OptionScope;
inline constexpr OptionRow kCompilerOptions[] = {
    {"config", kPath, "", kRun, "Compile",
     "YAML file with options; qlora-run reads it too"},
    {"output", kPath, "", kOutput, "Compile", "the program to write", "o"},
    {"target", kChoice, "auto", kProgram, "Compile",
     "what runs the program; auto: cuda if this machine has a usable GPU and "
     "a CUDA compiler, else cpu", "", "auto cpu cuda"},
    {"verbose", kBool, "false", kRun, "Compile", "print the memory plan", "v"},
    {"emit", kChoice, "so", kRun, "Looking inside",
     "print the IR after a phase or the generated kernels (cpp, cuda) instead "
     "of writing a program (so)", "",
     "adapt step optimize program cpp cuda so"},
    {"dump_phases", kPath, "", kOutput, "Looking inside",
     "folder for the IR after every phase and the kernels"},
    {"plan_report", kPath, "", kOutput, "Looking inside",
     "file for the memory plan and every decision of the compiler: .json or "
     ".html (a picture); qlora-memory-viz converts the .json for "
     "pytorch.org/memory_viz", "-report"},
    {"remarks", kBool, "false", kRun, "Looking inside",
     "print why kernels, decoding and recomputation were chosen"},

    {"march", kString, "native", kProgram, "Kernels and passes",
     "instructions of CPU kernels: native, x86-64-v2, x86-64-v3, x86-64-v4"},
    {"cuda_arch", kNames, "[native]", kProgram, "Kernels and passes",
     "GPU architectures: 90 or sm_90; compute_80 for PTX of 80 and later; "
     "native: this machine's GPUs; all: sm_80, 89, 90, 100, 120 and PTX; "
     "none: no device code, only a plan"},
    {"cuda_compiler", kString, "", kProgram, "Kernels and passes",
     "CUDA compiler: a path or a name on PATH; empty: nvcc"},
    {"device_profile", kString, "", kProgram, "Kernels and passes",
     "device whose speeds the plan is for: a known GPU (h100, h200, ...) or a "
     "device.json of qlora-run --calibrate; empty: a typical one"},
    {"dequantize", kChoice, "auto", kProgram, "Kernels and passes",
     "when matmuls decode stored weights. tiled: a few rows at a time in each "
     "matmul; per-use: a whole weight before its use; once: when loaded, kept "
     "decoded; auto: the fastest that fits", "-dequant",
     "auto tiled per-use once panel=tiled scratch=per-use resident=once"},
    {"shard_embeddings", kChoice, "auto", kProgram, "Kernels and passes",
     "with --parallel fsdp or tp: each rank uses only its own rows of the "
     "embedding and the LM head, for the tokens of all ranks, which exchange "
     "the results; auto: unless the results have more bytes than the weight",
     "-divide_tables", "auto true false"},
    {"sequence_parallel", kBool, "false", kProgram, "Kernels and passes",
     "with --parallel tp, shard tokens between matmuls (norms, residuals), as "
     "Megatron-LM does"},
    {"offload_activations_policy", kChoice, "auto", kProgram,
     "Kernels and passes",
     "which activations --offload activations copies. auto: as many as the "
     "computation of their layers hides, or only those between layers if "
     "nothing else fits --memory-limit; all: all, even if the GPU waits",
     "-copied_activations", "auto all"},
    {"disable_pass", kNames, "[]", kProgram, "Kernels and passes",
     "names of optimization passes to leave out"},
    {"ranks", kInt, "1", kProgram, "Kernels and passes",
     "ranks on all machines, for --auto-find-batch-size, --parallel auto, "
     "--device-map and --ddp-comm-hook int8 and power_sgd; other programs run "
     "on any number of ranks", "", "", 1, 1 << 20},
    {"device_map", kPath, "", kProgram, "Kernels and passes",
     "layers of each GPU, as in Accelerate. auto, balanced: evenly; "
     "sequential: each GPU full before the next; or a JSON file of modules "
     "and GPUs. Sets --parallel pp=N, with N from the file or from --ranks "
     "(qlora: --gpus)", "", "auto balanced sequential"},
    {"stage_speeds", kNumbers, "[]", kProgram, "Kernels and passes",
     "relative speeds of the GPUs of the stages of --parallel pp, such as 3 "
     "1: a stage gets layers in proportion", "", "", 1, 1000000},
    {"force_single_gpu", kBool, "false", kProgram, "Kernels and passes",
     "keep the whole model on one rank, even if the configuration shards it"},
    {"gpus_per_node", kInt, "0", kProgram, "Kernels and passes",
     "GPUs of a machine, for --parallel auto and --simulate; 0: as in the "
     "device profile", "", "", 0, 1024},
    {"network", kString, "", kProgram, "Kernels and passes",
     "bandwidth of each GPU to other machines, for --parallel auto and "
     "--simulate: 400Gb (bits) or 50GB (bytes) per second"},
    {"gradient_buckets", kInt, "4", kProgram, "Kernels and passes",
     "maximum number of all-reduces for a step's gradients, which overlap "
     "with the backward", "-max_buckets", "", 1, 4},
    {"cache_dir", kPath, "", kOutput, "Kernels and passes",
     "folder of compiled kernels; empty: in the user's cache"},
    {"cache", kBool, "true", kRun, "Kernels and passes",
     "keep compiled kernels"},
};
} // namespace compiler_options
using compiler_options::kCompilerOptions;

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_COMPILEROPTIONS_H
