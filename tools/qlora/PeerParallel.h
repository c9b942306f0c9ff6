// SPDX-License-Identifier: MIT

// What the sections `deepspeed`, `fsdp` and `fsdp_config` of other tools' files
// mean here: ZeRO's stages and FSDP's sharding strategies as --parallel, their
// offloading as --offload. What else they ask for either leaves the numbers as
// they are, is translated, or is refused by its key.

#ifndef QLORA_TOOLS_QLORA_PEERPARALLEL_H
#define QLORA_TOOLS_QLORA_PEERPARALLEL_H

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/OptionValue.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Ranks of a run, and those of them on this machine.
struct RankCounts {
  int64_t all = 1, ofMachine = 1;
};

/// The sections as entries with options of ours. None if the file has none of
/// them, or only empty ones. `path` is the file's: a section may name a JSON
/// file, relative to it or to where the command runs. Errors begin with
/// "FILE:LINE: 'KEY'".
StatusOr<std::vector<YamlEntry>>
translateParallel(std::span<const YamlEntry> entries, const std::string &path,
                  RankCounts ranks);

/// Whether translateParallel() reads the key.
bool isParallelKey(std::string_view key);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PEERPARALLEL_H
