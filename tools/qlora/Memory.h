// SPDX-License-Identifier: MIT

// `qlora memory`: which configurations of a model fit into which memory.
// qloracc plans each combination of base format, length, batch and LoRA rank
// (no formula), with and without recomputation.

#ifndef QLORA_TOOLS_QLORA_MEMORY_H
#define QLORA_TOOLS_QLORA_MEMORY_H

#include <span>
#include <string>

#include "runtime/Base/CommandLine.h"
#include "runtime/Base/Status.h"

namespace qlora {

const Tool &memoryTool();

/// Returns the table, sorted by memory. `words` follow the command's name.
StatusOr<std::string> memoryTable(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_MEMORY_H
