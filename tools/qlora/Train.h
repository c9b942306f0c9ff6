// SPDX-License-Identifier: MIT

// `qlora train`: from a model folder and data to an adapter, by the three
// tools: qlora-import, qloracc (both only where the program is not in the
// cache), and qlora-run, which this process becomes.

#ifndef QLORA_TOOLS_QLORA_TRAIN_H
#define QLORA_TOOLS_QLORA_TRAIN_H

#include <span>
#include <string>

#include "runtime/Base/CommandLine.h"
#include "runtime/Base/Status.h"
#include "tools/qlora/Configuration.h"

namespace qlora {

/// What it takes: options of a run and of all three tools.
const Tool &trainTool();

/// `qlora train`, or `qlora plan`: the same up to the program. `words` follow the command's name. Returns where qlora-run is not started:
/// an answer was printed, or the commands of --dry-run.
Status train(std::span<const std::string> words, ProgramUse use);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TRAIN_H
