// SPDX-License-Identifier: MIT

// Tools whose configuration files are supported: their keys, and their defaults
// for absent keys.
//
//   axolotl       0.18.0
//   LLaMA-Factory 0.9.6.dev0
//   TRL           1.16.0: its command line (ModelConfig and the trainers'
//                 configurations)

#ifndef QLORA_TOOLS_QLORA_FOREIGNTOOLS_H
#define QLORA_TOOLS_QLORA_FOREIGNTOOLS_H

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/OptionYaml.h"

namespace qlora {

enum class ForeignTool { kAxolotl, kLlamaFactory, kTrl };

const char *nameOf(ForeignTool tool);

/// Tool that a file is written for, and a key that only this tool has.
struct FileTool {
  ForeignTool tool;
  std::string key;
  int line = 0;
};

/// Returns the tool that a file is written for. Considers only keys that belong
/// to exactly one tool, and that are not options of qlora. Returns no value if
/// the file has no such key. Fails if such keys belong to different tools.
StatusOr<std::optional<FileTool>> toolOf(std::span<const YamlEntry> entries,
                                         const std::string &path);

/// A tool's key and the tool's default for it.
struct ForeignDefault {
  std::string_view key, value;
};

/// Returns the tool's defaults that affect training and differ from the
/// defaults of qlora's options. `rl` is the objective, a value of --rl.
std::vector<ForeignDefault> defaultsOf(ForeignTool tool, std::string_view rl);

/// Returns PEFT's default targets for a model_type. Fails if PEFT has none.
StatusOr<nlohmann::ordered_json> peftTargets(const std::string &modelType);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNTOOLS_H
