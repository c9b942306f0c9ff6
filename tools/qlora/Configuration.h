// SPDX-License-Identifier: MIT

// Resolves the options of a run from a command line and a YAML file, and makes
// the flags of each tool from them.

#ifndef QLORA_TOOLS_QLORA_CONFIGURATION_H
#define QLORA_TOOLS_QLORA_CONFIGURATION_H

#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/CommandLine.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

namespace qlora {

// Option rows of each tool that `qlora` passes on, without those that it sets
// itself (inputs, outputs, the configuration). No name is in two tables.
std::span<const OptionRow> importerRows();
std::span<const OptionRow> compilerRows();
std::span<const OptionRow> runnerRows();

enum class ProgramUse {
  kTrain, ///< runs it on this machine
  kPlan,  ///< only plans memory and commands: needs no device code
};

struct Configuration {
  Options options;     ///< options of the run
  std::string program; ///< path of a given compiled program, or empty
  std::vector<std::string> notes; ///< about keys of other tools, one line each

  // Flags for the tools, "--name=value".
  std::vector<std::string> importerFlags, compilerFlags, runnerFlags;
  nlohmann::ordered_json dropout =
      nlohmann::ordered_json::object(); ///< values of importerFlags, by option
  std::string target; ///< in compilerFlags: "cpu" or "cuda"; empty: no compile
  std::string deviceProfile, deviceMap; ///< values of these compilerFlags
  /// Do not use a cached program: a requested file or text comes only from
  /// compiling, or the program depends on this machine's free memory.
  bool alwaysCompiles = false;
};

/// Resolves the options. `config` is --config, or empty. The first word that is
/// no option is a model, a program or a YAML file, the second is the data. A
/// model that is a name on the Hugging Face hub becomes the folder of its
/// snapshot, which may be fetched; `revision` is the hub's, or empty for main.
/// Chooses the target for this machine (runtime/Kernels/Cuda/TargetChoice.h),
/// and adds the choice's warning to the notes.
StatusOr<Configuration> configure(const CommandLine &line,
                                  const std::string &config,
                                  const std::string &revision, ProgramUse use);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_CONFIGURATION_H
