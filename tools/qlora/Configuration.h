// SPDX-License-Identifier: MIT

// Options of a run, from a command line and a YAML file, and the flags that
// each tool gets of them.

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
// itself (inputs, outputs, the configuration). A name is in one table only.
std::span<const OptionRow> importerRows();
std::span<const OptionRow> compilerRows();
std::span<const OptionRow> runnerRows();

enum class ProgramUse {
  kTrain, ///< runs it on this machine
  kPlan,  ///< only counts it: device code is not needed
};

struct Configuration {
  Options options;     ///< options of the run
  std::string program; ///< a compiled program that was given, or empty
  std::vector<std::string> notes; ///< about keys of other tools, one line each

  // Flags for the tools, "--name=value".
  std::vector<std::string> importerFlags, compilerFlags, runnerFlags;
  nlohmann::ordered_json dropout =
      nlohmann::ordered_json::object(); ///< values in importerFlags
  std::string target; ///< in compilerFlags: "cpu" or "cuda"; empty: no compile
  std::string deviceProfile, deviceMap;              ///< in compilerFlags
  /// True if a requested file or text comes only from compiling, or if this
  /// machine's free memory decides: no cached program is used then.
  bool alwaysCompiles = false;
};

/// Reads the options. `config` is --config, or empty. Words that are not
/// options are a model, a program or a YAML file, and then the data. A model
/// that is not a folder but a name on the Hugging Face hub becomes the folder
/// of its snapshot, of `revision` unless empty; this may fetch it. Chooses the
/// target for this machine (runtime/Kernels/Cuda/TargetChoice.h), and adds the
/// choice's warning to the notes.
StatusOr<Configuration> configure(const CommandLine &line,
                                  const std::string &config,
                                  const std::string &revision, ProgramUse use);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_CONFIGURATION_H
