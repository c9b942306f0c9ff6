// SPDX-License-Identifier: MIT

// Resolves the options of a run from a command line and a YAML file, and
// derives the flags for each tool.

#ifndef QLORA_TOOLS_QLORA_CONFIGURATION_H
#define QLORA_TOOLS_QLORA_CONFIGURATION_H

#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"
#include "runtime/Options/Options.h"

namespace qlora {

// Options of each tool that `qlora` passes on. Excludes options that `qlora`
// sets itself (inputs, outputs, the configuration). No name is in two tables.
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
  /// Values of importerFlags by option name. They replace keys of config.json.
  nlohmann::ordered_json modelKeys = nlohmann::ordered_json::object();
  std::string target; ///< in compilerFlags: "cpu" or "cuda"; empty: no compile
  std::string deviceProfile, deviceMap; ///< values of these compilerFlags
  /// Do not use a cached program. Set if the user requests a file or text that
  /// only compiling produces, or if the program depends on free memory.
  bool alwaysCompiles = false;
};

/// Whether an argument is a configuration: a path that ends with .yaml or .yml.
bool isYamlFile(const std::string &word);

/// Resolves the options. `config` is --config, or empty. The first word that is
/// not an option is a model, a program or a YAML file; the second is the data.
/// A model name on the Hugging Face hub becomes its snapshot's folder, which
/// may be fetched, and so do names of data sets. `revision` is the hub's
/// revision of the model, or empty for main. Chooses
/// the target for this machine (runtime/Kernels/Cuda/TargetChoice.h) and adds
/// any warning about it to the notes.
StatusOr<Configuration> configure(const CommandLine &line,
                                  const std::string &config,
                                  const std::string &revision, ProgramUse use);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_CONFIGURATION_H
