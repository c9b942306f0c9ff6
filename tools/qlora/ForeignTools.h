// SPDX-License-Identifier: MIT

// Tools whose configuration files are supported: their keys, and their defaults
// for absent keys.
//
//   axolotl       0.18.0
//   LLaMA-Factory 0.9.6.dev0
//   TRL           1.10.0.dev0: its command line (ModelConfig and the trainers'
//                 configurations)

#ifndef QLORA_TOOLS_QLORA_FOREIGNTOOLS_H
#define QLORA_TOOLS_QLORA_FOREIGNTOOLS_H

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/OptionValue.h"
#include "runtime/Base/Status.h"

namespace qlora {

enum class ForeignTool { kAxolotl, kLlamaFactory, kTrl };

const char *nameOf(ForeignTool tool);

/// Tool that a file is written for, and the key that shows it.
struct FileTool {
  ForeignTool tool;
  std::string key;
  int line = 0;
};

/// Returns the only tool that has some key of the file. No value if each key is
/// qlora's too or belongs to several tools: then the file is qlora's. An
/// error if keys belong to different tools.
StatusOr<std::optional<FileTool>> toolOf(std::span<const YamlEntry> entries,
                                         const std::string &path);

/// Key of a tool, and its default there.
struct ForeignDefault {
  std::string_view key, value;
};

/// Returns the tool's defaults that change a training and differ from the
/// default of qlora's option. `rl`: the objective, a value of --rl.
std::vector<ForeignDefault> defaultsOf(ForeignTool tool, std::string_view rl);

/// Returns PEFT's targets for a model_type, or an error if it has none.
StatusOr<nlohmann::ordered_json> peftTargets(const std::string &modelType);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNTOOLS_H
