// SPDX-License-Identifier: MIT

// Options of qloracc that are not training options. `qlora` accepts them too
// and passes them on.

#ifndef QLORA_TOOLS_QLORACC_COMPILEROPTIONS_H
#define QLORA_TOOLS_QLORACC_COMPILEROPTIONS_H

#include "runtime/Base/OptionTable.h"

namespace qlora {

/// Number of options below that come first in --help-all.
inline constexpr size_t kCompilerOptionsFirst = 4;

inline constexpr OptionRow kCompilerOptions[] = {
    {"config", OptionType::kPath, "", OptionScope::kProgram, "Compile",
     "YAML file with any of the options below; qlora-run reads it too"},
    {"output", OptionType::kPath, "", OptionScope::kProgram, "Compile",
     "the program to write", "o"},
    {"target", OptionType::kChoice, "auto", OptionScope::kProgram, "Compile",
     "what runs the program; auto: cuda if this machine has a GPU that can be "
     "used and a CUDA compiler, else cpu",
     "", "auto cpu cuda"},
    {"verbose", OptionType::kBool, "false", OptionScope::kProgram, "Compile",
     "print the memory plan", "v"},
    {"emit", OptionType::kChoice, "so", OptionScope::kProgram, "Looking inside",
     "print the IR after a phase, or the generated kernels (cpp, cuda)", "",
     "adapt step optimize program cpp cuda so"},
    {"dump_phases", OptionType::kPath, "", OptionScope::kProgram,
     "Looking inside", "folder for the IR after every phase and the kernels"},
    {"report", OptionType::kPath, "", OptionScope::kProgram, "Looking inside",
     "file for the memory plan and every decision: .json, .html (a picture), "
     ".pickle (for pytorch.org/memory_viz)"},
    {"remarks", OptionType::kBool, "false", OptionScope::kProgram,
     "Looking inside",
     "say why kernels, decoding and recomputation were chosen"},

    {"march", OptionType::kString, "native", OptionScope::kProgram,
     "Kernels and passes",
     "instructions of the kernels: native, x86-64-v2, x86-64-v3, x86-64-v4"},
    {"cuda_arch", OptionType::kNames, "[native]", OptionScope::kProgram,
     "Kernels and passes",
     "architectures of GPUs: 90 or sm_90; compute_80 is PTX for all from there "
     "on; native: those of this machine's GPUs; all: sm_80, 89, 90, 100, 120 "
     "and PTX; none: no device code, for a plan"},
    {"cuda_compiler", OptionType::kString, "", OptionScope::kProgram,
     "Kernels and passes",
     "the CUDA compiler: a path, or a name on PATH; without it: nvcc"},
    {"device_profile", OptionType::kString, "", OptionScope::kProgram,
     "Kernels and passes",
     "whose rates to plan with: a known card (h100, h200, ...), or the "
     "device.json of qlora-run --calibrate"},
    {"dequant", OptionType::kChoice, "auto", OptionScope::kProgram,
     "Kernels and passes",
     "where stored weights become numbers: panel by panel, whole in each use, "
     "or once for all steps",
     "", "auto panel scratch resident"},
    {"divide_tables", OptionType::kChoice, "auto", OptionScope::kProgram,
     "Kernels and passes",
     "with --parallel fsdp, each rank looks up in, and multiplies with, its "
     "own "
     "rows of the embedding and of the head, for the tokens of all; auto: "
     "where "
     "that takes less memory than the table",
     "", "auto true false"},
    {"sequence_parallel", OptionType::kBool, "false", OptionScope::kProgram,
     "Kernels and passes",
     "with --parallel tp, each rank computes and keeps its part of the tokens "
     "where there are no products (norms, residuals), as Megatron-LM does"},
    {"copied_activations", OptionType::kChoice, "auto", OptionScope::kProgram,
     "Kernels and passes",
     "with --offload activations, which are copied: as many as the bus carries "
     "while their layers are computed, or what crosses from layer to layer "
     "where "
     "no other plan is within the --memory-limit; or all, be the card idle "
     "meanwhile",
     "", "auto all"},
    {"disable_pass", OptionType::kNames, "[]", OptionScope::kProgram,
     "Kernels and passes",
     "optimisations to leave out, by the name of their pass"},
    {"ranks", OptionType::kInt, "1", OptionScope::kProgram,
     "Kernels and passes",
     "ranks of all machines, which share a --global-batch-size: for "
     "--auto-find-batch-size, --parallel auto, --device-map and "
     "--ddp-comm-hook "
     "int8 and power_sgd, since any other program is the same for any number",
     "", "", 1, 1 << 20},
    {"device_map", OptionType::kPath, "", OptionScope::kProgram,
     "Kernels and passes",
     "layers on several GPUs, as Accelerate has it: auto or balanced: evenly; "
     "sequential: each full before the next; or a JSON file of modules and "
     "GPUs. It "
     "is --parallel pp=N, with N from the file, or from --ranks (qlora: "
     "--gpus)",
     "", "auto balanced sequential"},
    {"stage_speeds", OptionType::kNumbers, "[]", OptionScope::kProgram,
     "Kernels and passes",
     "with --parallel pp, how fast the GPU of each stage is beside the others: "
     "it "
     "gets as many more layers",
     "", "", 1, 1000000},
    {"force_single_gpu", OptionType::kBool, "false", OptionScope::kProgram,
     "Kernels and passes",
     "one rank has the whole model, whatever a configuration says of several"},
    {"gpus_per_node", OptionType::kInt, "0", OptionScope::kProgram,
     "Kernels and passes",
     "GPUs of a machine that --parallel auto chooses for, and a prediction "
     "(--device null:CARD of qlora) is for; 0: as the device profile has it",
     "", "", 0, 1024},
    {"network", OptionType::kString, "", OptionScope::kProgram,
     "Kernels and passes",
     "what the link of each GPU to other machines carries a second, for the "
     "same: 400Gb (bits) or 50GB (bytes)"},
    {"max_buckets", OptionType::kInt, "4", OptionScope::kProgram,
     "Kernels and passes", "all-reduces of a step at most", "", "", 1, 4},
    {"cache_dir", OptionType::kPath, "", OptionScope::kProgram,
     "Kernels and passes",
     "folder of compiled kernels; without it: the user's cache"},
    {"cache", OptionType::kBool, "true", OptionScope::kProgram,
     "Kernels and passes", "keep compiled kernels"},
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_COMPILEROPTIONS_H
