// SPDX-License-Identifier: MIT

// Translates the sections `deepspeed`, `fsdp` and `fsdp_config` of other tools'
// files, and keys such as `tensor_parallel_size` and `activation_offloading`.
// ZeRO stages, FSDP strategies and sizes become --parallel; offloading becomes
// --offload. Keys that do not change results are ignored. Unsupported keys are
// refused by name.

#ifndef QLORA_TOOLS_QLORA_FOREIGNPARALLEL_H
#define QLORA_TOOLS_QLORA_FOREIGNPARALLEL_H

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/OptionYaml.h"

namespace qlora {

/// Ranks of the run, and ranks on this machine.
struct RankCounts {
  int64_t all = 1, ofMachine = 1;
};

/// Translates the sections to options. Returns none if the sections are missing
/// or empty. `path` is the YAML file. A section may name a JSON file, relative
/// to the YAML file or to the working directory. Errors begin with "FILE:LINE:
/// 'KEY'".
StatusOr<std::vector<YamlEntry>>
translateParallel(std::span<const YamlEntry> entries, const std::string &path,
                  RankCounts ranks);

/// Returns whether translateParallel() translates the key alone.
bool isParallelKey(std::string_view key);

/// Returns whether the entry is axolotl's `gradient_checkpointing: offload`,
/// for which translateParallel() adds --offload activations.
bool offloadsCheckpoints(const YamlEntry &entry);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNPARALLEL_H
