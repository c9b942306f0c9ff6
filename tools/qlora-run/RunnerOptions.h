// SPDX-License-Identifier: MIT

// Options of qlora-run that are not training options. `qlora` accepts them too
// and passes them on.

#ifndef QLORA_TOOLS_QLORARUN_RUNNEROPTIONS_H
#define QLORA_TOOLS_QLORARUN_RUNNEROPTIONS_H

#include "runtime/Base/OptionTable.h"
#include "runtime/Device/Device.h"
#include "runtime/Weights/QuantizedBase.h"

namespace qlora {

/// Number of options below that come first in --help-all.
inline constexpr size_t kRunnerOptionsFirst = 8;

inline constexpr OptionRow kRunnerOptions[] = {
    {"config", OptionType::kPath, "", OptionScope::kRun, "Run",
     "YAML file with options"},
    {"gpus", OptionType::kInt, "1", OptionScope::kRun, "Run",
     "processes (ranks) to train with on this machine: one per GPU with a "
     "program for cuda, else sharing the CPU",
     "nproc_per_node", "", 1, 4096},
    {"ranks_per_gpu", OptionType::kInt, "1", OptionScope::kRun, "Run",
     "ranks that share one GPU, to try layouts through NCCL on fewer GPUs than "
     "ranks; their plans must fit its memory together, and steps take longer",
     "", "", 1, 64},
    {"force_single_gpu", OptionType::kBool, "false", OptionScope::kRun, "Run",
     "one rank, on the first GPU"},
    {"device", OptionType::kString, "auto", OptionScope::kRun, "Run",
     "auto (what TRAIN.so is for), cpu or cuda; null: check and count the "
     "program for --gpus N ranks, run nothing; null:CARD, with a known card "
     "(null:h200) or a device.json: predict a step's time too"},
    {"threads", OptionType::kInt, "0", OptionScope::kRun, "Run",
     "CPU threads of each rank; 0: OMP_NUM_THREADS, or else this rank's share "
     "of the CPUs that this process may use",
     "t", "", 0, 4096},
    {"verbose", OptionType::kBool, "false", OptionScope::kRun, "Run",
     "print the tables of memory and time", "v"},
    {"sweep", OptionType::kNames, "[]", OptionScope::kRun, "Run",
     "NAME=VALUE,VALUE,... of options: a run for each combination, all at once "
     "over one base, into folders of --output-dir; one rank, CPU only"},
    {"cuda_graphs", OptionType::kBool, "true", OptionScope::kRun,
     "Kernels and caches",
     "launch an entry as one captured graph; false: kernel by kernel"},
    {"disable_kernels", OptionType::kNames, "[]", OptionScope::kRun,
     "Kernels and caches",
     "library kernels not to use, such as attention.cudnn; another one of the "
     "same kind is taken"},
    {"reference_kernels", OptionType::kNames, "[]", OptionScope::kRun,
     "Kernels and caches",
     "library ops, such as attention, to do by their plain references: sums in "
     "float64, for comparison, hundreds of times slower; CPU only"},
    {"gemm_table", OptionType::kString, DeviceOptions::kMeasureGemms,
     OptionScope::kRun, "Kernels and caches",
     "algorithms of matrix products on a GPU: measure (once for a card, then "
     "kept in the user's cache), heuristic (cuBLASLt's first choice), or the "
     "gemm_table.json of an earlier run, which is then used as it is"},
    {"base_cache", OptionType::kString, QuantizedBaseCacheRequest::kUserCache,
     OptionScope::kRun, "Kernels and caches",
     "where quantised bases are kept, for later runs of the same model to map "
     "instead of reading and quantising it again: auto (bases/ in the user's "
     "cache), a folder, or none; CPU only"},
    {"base_cache_limit", OptionType::kSize, "40GiB", OptionScope::kRun,
     "Kernels and caches",
     "size of all bases that are kept; the least recently used go first", "",
     "", 0},
    {"print", OptionType::kBool, "false", OptionScope::kRun, "Looking inside",
     "list the commands of the program"},
    {"dump", OptionType::kPath, "", OptionScope::kRun, "Looking inside",
     "write logits, first gradients and 4-bit weights to a safetensors file"},
    {"profile", OptionType::kPath, "", OptionScope::kRun, "Looking inside",
     "write what every command of a few steps costs, on all queues and ranks, "
     "as a Chrome trace (ui.perfetto.dev), and print the step's time by kind; "
     "on a GPU these steps run kernel by kernel, one at a time on all streams, "
     "with events around each, so that small kernels take longer than in a "
     "graph"},
    {"profile_warmup", OptionType::kInt, "2", OptionScope::kRun,
     "Looking inside", "steps before those of --profile", "", "", 0},
    {"profile_active", OptionType::kInt, "3", OptionScope::kRun,
     "Looking inside", "steps of --profile", "profile_steps", "", 1},
    {"device_profile", OptionType::kString, "", OptionScope::kRun,
     "Looking inside",
     "rates that --profile compares with: a known card (h200) or the "
     "device.json of --calibrate; without it, with none"},
    {"gpus_per_node", OptionType::kInt, "0", OptionScope::kRun,
     "Looking inside",
     "GPUs of a machine that --device null:CARD predicts for; 0: as the card's "
     "profile has it",
     "", "", 0, 1024},
    {"network", OptionType::kString, "", OptionScope::kRun, "Looking inside",
     "what the link of each GPU to other machines carries a second, for "
     "--device null:CARD: 400Gb (bits) or 50GB (bytes)"},
    {"node_mtbf_hours", OptionType::kFloat, "0", OptionScope::kRun,
     "Looking inside",
     "mean time between two failures of a machine, for --device null:CARD, "
     "which "
     "then says how often to save; 0: nothing is said",
     "", "", 0, 1e9},
    {"report", OptionType::kPath, "", OptionScope::kRun, "Looking inside",
     "write report.html, a page of curves and settings, again from what is in "
     "a run's folder, and do nothing else; every training writes it at its "
     "end"},
    {"calibrate", OptionType::kBool, "false", OptionScope::kRun,
     "Looking inside",
     "measure this machine's CPUs and write device.json, or the NAME.json that "
     "is given in TRAIN.so's place, for qloracc; with --gpus N, or started on "
     "several machines, also what is between ranks, and with --device-profile "
     "that alone"},
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORARUN_RUNNEROPTIONS_H
