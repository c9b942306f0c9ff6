// SPDX-License-Identifier: MIT

// `qlora train`: makes an adapter from a model folder and data with three
// tools: qlora-import and qloracc, only if the program is not in the cache, and
// qlora-run, which replaces this process.

#ifndef QLORA_TOOLS_QLORA_TRAIN_H
#define QLORA_TOOLS_QLORA_TRAIN_H

#include <span>
#include <string>

#include "runtime/Base/CommandLine.h"
#include "runtime/Base/Status.h"
#include "tools/qlora/Configuration.h"

namespace qlora {

/// Options of `qlora train`: those of a run and of all three tools.
const Tool &trainTool();

/// Runs `qlora train` or `qlora plan`. `words` follow the command's name.
/// Returns only after an error, an answer (--help) or the output of --dry-run.
Status train(std::span<const std::string> words, ProgramUse use);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TRAIN_H
