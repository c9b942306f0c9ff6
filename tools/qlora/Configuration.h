// SPDX-License-Identifier: MIT

// What the user wants, from the words of a command line and a YAML file, and
// which of it each tool is told.

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

// The rows of the tools that `qlora` passes on: without what it decides itself
// (inputs, outputs, the configuration). A name stands in one table alone.
std::span<const OptionRow> importerRows();
std::span<const OptionRow> compilerRows();
std::span<const OptionRow> runnerRows();

/// What a command does with its program.
enum class ProgramUse {
  kTrain, ///< runs it on this machine
  kPlan,  ///< only counts it: device code is not needed
};

struct Configuration {
  Options options;     ///< of the run
  std::string program; ///< a compiled program that was given; else empty
  std::vector<std::string> notes; ///< about keys of other tools, a line each

  // Flags that are passed on, "--name=value".
  std::vector<std::string> importerFlags, compilerFlags, runnerFlags;
  nlohmann::ordered_json dropout =
      nlohmann::ordered_json::object(); ///< importerFlags' values
  std::string target; ///< of compilerFlags: "cpu" or "cuda"; empty: no compile
  std::string deviceProfile, deviceMap;              ///< of compilerFlags
  /// A file or a text is wanted that only compiling gives, or the machine's
  /// free memory decides: no kept program is taken.
  bool alwaysCompiles = false;
};

/// `config`: --config, or empty. The words that are no options are a model, a
/// program or a YAML file, and then the data. A model that is a name on the
/// Hugging Face hub and no folder becomes the folder of its snapshot, of
/// `revision` where that is not empty, which may have to be fetched. The target
/// is chosen for this machine (runtime/Kernels/Cuda/TargetChoice.h); a warning of
/// that is among the notes.
StatusOr<Configuration> configure(const CommandLine &line,
                                  const std::string &config,
                                  const std::string &revision, ProgramUse use);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_CONFIGURATION_H
