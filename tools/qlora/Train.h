// SPDX-License-Identifier: MIT

// `qlora train`: makes an adapter from a model folder and data. Runs
// qlora-import and qloracc if the program is not in the cache. Then qlora-run
// replaces this process.

#ifndef QLORA_TOOLS_QLORA_TRAIN_H
#define QLORA_TOOLS_QLORA_TRAIN_H

#include <span>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"
#include "tools/qlora/Configuration.h"

namespace qlora {

/// Options of `qlora train`: run options and options of the three tools.
const Tool &trainTool();

/// Runs `qlora train` or `qlora plan`. `words` follow the command's name.
/// Returns only after an error, --help or --dry-run.
Status train(std::span<const std::string> words, ProgramUse use);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TRAIN_H
