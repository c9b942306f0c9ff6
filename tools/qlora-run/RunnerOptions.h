// SPDX-License-Identifier: MIT

// Options of qlora-run that are not training options. `qlora` accepts them too
// and passes them on.

#ifndef QLORA_TOOLS_QLORARUN_RUNNEROPTIONS_H
#define QLORA_TOOLS_QLORARUN_RUNNEROPTIONS_H

#include "runtime/Device/Device.h"
#include "runtime/Options/Options.h"
#include "runtime/Weights/QuantizedBase.h"

namespace qlora {

/// --help-all prints this many rows of kRunnerOptions before all other options.
inline constexpr size_t kRunnerOptionsFirst = 11;

/// Replaces `--simulate GPU` with `--device null:GPU`, the form that other code
/// reads. `rows`: the runner's table.
inline void setSimulatedDevice(std::span<const OptionRow> rows,
                               std::vector<OptionSetting> &settings) {
  for (OptionSetting &setting : settings)
    if (setting.row->name == std::string_view("simulate"))
      setting = {findOption(rows, "device"), "null:" + setting.text,
                 setting.written};
}

namespace runner_options {
using enum OptionType;
using enum OptionScope;
inline constexpr OptionRow kRunnerOptions[] = {
    {"config", kPath, "", kRun, "Run", "YAML file with options"},
    {"gpus", kInt, "1", kRun, "Run",
     "ranks (processes) on this machine: one per GPU for a cuda program, else "
     "they share the CPU", "nproc_per_node", "", 1, 4096},
    {"ranks_per_gpu", kInt, "1", kRun, "Run",
     "ranks that share one GPU, to try layouts on fewer GPUs than ranks; "
     "their plans must fit its memory together, and steps take longer", "", "",
     1, 64},
    {"force_single_gpu", kBool, "false", kRun, "Run",
     "run one rank, on the first GPU"},
    {"device", kString, "auto", kRun, "Run",
     "device to run on: cpu, cuda, or auto for the target that TRAIN.so was "
     "compiled for; null: run nothing, but check the program for --gpus N "
     "ranks and count its commands"},
    {"simulate", kString, "", kRun, "Run",
     "predict the time of a step on a GPU, and run nothing: a known GPU such "
     "as h200, or a device.json"},
    {"threads", kInt, "0", kRun, "Run",
     "CPU threads of each rank; 0: OMP_NUM_THREADS, else this rank's fraction "
     "of the CPUs that this process may use", "t", "", 0, 4096},
    {"verbose", kBool, "false", kRun, "Run", "print tables of memory and time",
     "v"},
    {"generate", kBool, "false", kRun, "Run",
     "answer requests for generation, JSON lines on standard input, instead of "
     "training"},
    {"adapter", kString, "", kRun, "Run",
     "with --generate: folder of an adapter, or NAME=DIR. Repeat it for "
     "several adapters; a request chooses one by its name"},
    {"sweep", kNames, "[]", kRun, "Run",
     "train every combination of options, NAME=VALUE,VALUE,..., all at once "
     "over one base, into subfolders of --output-dir; one rank, CPU only"},
    {"cuda_graphs", kBool, "true", kRun, "Kernels and caches",
     "launch an entry as one captured graph; false: kernel by kernel"},
    {"disable_kernels", kNames, "[]", kRun, "Kernels and caches",
     "library kernels not to use, such as attention.cudnn; another kernel "
     "replaces them"},
    {"reference_kernels", kNames, "[]", kRun, "Kernels and caches",
     "ops to compute with plain reference kernels, such as attention: sums in "
     "float64, for comparison, hundreds of times slower; CPU only"},
    {"gemm_table", kString, DeviceOptions::kMeasureGemms, kRun,
     "Kernels and caches",
     "cuBLASLt algorithms. measure: timed once per GPU and kept in the user's "
     "cache; heuristic: cuBLASLt's first choice; or the gemm_table.json of an "
     "earlier run"},
    {"base_cache", kString, QuantizedBaseCacheRequest::kUserCache, kRun,
     "Kernels and caches",
     "folder of quantized bases, which later runs of the same model map "
     "instead of quantizing again; auto: bases/ in the user's cache; none: do "
     "not keep them; CPU only"},
    {"base_cache_limit", kSize, "40GiB", kRun, "Kernels and caches",
     "size of all kept quantized bases; the least recently used are deleted "
     "first", "", "", 0},
    {"print", kBool, "false", kRun, "Looking inside",
     "list the commands of the program"},
    {"dump", kPath, "", kRun, "Looking inside",
     "safetensors file for logits, first gradients and 4-bit weights"},
    {"evaluation_rows", kPath, "", kRun, "Looking inside",
     "JSONL file for the evaluated rows, with input_ids and labels; one rank"},
    {"profile", kPath, "", kRun, "Looking inside",
     "file for a Chrome trace (ui.perfetto.dev) of every command of a few "
     "steps on all queues and ranks; also prints time by kind. On GPUs these "
     "steps run kernel by kernel, so small kernels take longer than in a "
     "graph"},
    {"profile_warmup", kInt, "2", kRun, "Looking inside",
     "steps to run before --profile starts to record", "", "", 0},
    {"profile_active", kInt, "3", kRun, "Looking inside",
     "steps that --profile records", "profile_steps", "", 1},
    {"device_profile", kString, "", kRun, "Looking inside",
     "speeds that --profile compares with: a known GPU (h200) or a "
     "device.json of --calibrate; empty: none"},
    {"gpus_per_node", kInt, "0", kRun, "Looking inside",
     "GPUs of a machine that --simulate predicts for; 0: as in the GPU's "
     "profile", "", "", 0, 1024},
    {"network", kString, "", kRun, "Looking inside",
     "bandwidth of each GPU to other machines for --simulate: 400Gb (bits) or "
     "50GB (bytes) per second"},
    {"node_mtbf_hours", kFloat, "0", kRun, "Looking inside",
     "mean hours between two failures of a machine; --simulate then "
     "recommends a checkpoint interval; 0: none", "", "", 0, 1e9},
    {"report", kPath, "", kRun, "Looking inside",
     "write report.html, with curves and settings, again from a run's folder, "
     "and do nothing else; every training writes it at its end"},
    {"calibrate", kBool, "false", kRun, "Looking inside",
     "measure this machine's CPUs and write device.json, which "
     "--device-profile reads; a NAME.json in place of TRAIN.so names another "
     "file. Several ranks also measure the links between them. With "
     "--device-profile, only links are measured, and the other rates are "
     "copied"},
};
} // namespace runner_options
using runner_options::kRunnerOptions;

} // namespace qlora

#endif // QLORA_TOOLS_QLORARUN_RUNNEROPTIONS_H
