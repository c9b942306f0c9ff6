// SPDX-License-Identifier: MIT

// `qlora memory`: what of a model fits where, before anything is compiled for
// good: the plan of each combination of base format, length, batch and rank, as
// qloracc makes it (no formula), with and without recomputation.

#ifndef QLORA_TOOLS_QLORA_MEMORY_H
#define QLORA_TOOLS_QLORA_MEMORY_H

#include <span>
#include <string>

#include "runtime/Base/CommandLine.h"
#include "runtime/Base/Status.h"

namespace qlora {

const Tool &memoryTool();

/// `words` follow the command's name. The answer, sorted by memory.
StatusOr<std::string> memoryTable(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_MEMORY_H
