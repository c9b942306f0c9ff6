// SPDX-License-Identifier: MIT

// `qlora train`: makes an adapter from a model folder and data. Runs
// qlora-import and qloracc if the program is not in the cache. Then qlora-run
// replaces this process.

#ifndef QLORA_TOOLS_QLORA_TRAIN_H
#define QLORA_TOOLS_QLORA_TRAIN_H

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"
#include "tools/qlora/Configuration.h"
#include "tools/qlora/Programs.h"
#include "tools/qlora/Tools.h"

namespace qlora {

/// Options of `qlora train`: run options and options of the three tools.
const Tool &trainTool();

/// Programs of a command line (several for a sweep), and qlora-run's command,
/// whose first arguments are the programs.
struct TrainCommands {
  std::vector<ProgramCommands> programs;
  ToolCommand run{"qlora-run", {}};
  std::string target, parallel; ///< of the configuration
  /// A text that only qlora-run prints is requested: its tables, its commands,
  /// or JSON.
  bool isDetailed = false;
};

/// Makes the programs of `words`, the command line of `tool`. Returns nullopt
/// if all is done, after --help or --dry-run.
StatusOr<std::optional<TrainCommands>>
prepareTraining(std::span<const std::string> words, const Tool &tool,
                ProgramUse use);

/// Runs `qlora train`. `words` follow the command's name. Returns only after an
/// error, --help or --dry-run.
Status train(std::span<const std::string> words);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TRAIN_H
