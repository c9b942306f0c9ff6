// SPDX-License-Identifier: MIT

// `qlora plan`: eight lines about the memory and speed of a training. qlora-run
// counts the program on its null device; `--verbose` prints all that it counts.

#ifndef QLORA_TOOLS_QLORA_PLAN_H
#define QLORA_TOOLS_QLORA_PLAN_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

/// Options of `qlora plan`, which are those of `qlora train`.
const Tool &planTool();

/// Runs `qlora plan`. `words` follow the command's name.
Status plan(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PLAN_H
