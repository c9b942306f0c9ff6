// SPDX-License-Identifier: MIT

// The tools whose configuration files are understood: which keys each has, and
// what it takes where a file leaves a key out.
//
//   axolotl       0.18.0
//   LLaMA-Factory 0.9.6.dev0
//   TRL           1.10.0.dev0, of its command line (ModelConfig and the
//                 configurations of its trainers)

#ifndef QLORA_TOOLS_QLORA_PEERTOOLS_H
#define QLORA_TOOLS_QLORA_PEERTOOLS_H

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/OptionValue.h"
#include "runtime/Base/Status.h"

namespace qlora {

enum class PeerTool { kAxolotl, kLlamaFactory, kTrl };

const char *nameOf(PeerTool tool);

/// The tool that a file is for, and the key that says so.
struct FileTool {
  PeerTool tool;
  std::string key;
  int line = 0;
};

/// The tool that alone has some key of the file. No value if each key is an
/// option here, or is one of several tools: then the file is qlora's. An error
/// if keys belong to different tools.
StatusOr<std::optional<FileTool>> toolOf(std::span<const YamlEntry> entries,
                                         const std::string &path);

/// A key of a tool, and the value that a file without the key means there.
struct PeerDefault {
  std::string_view key, value;
};

/// Defaults of the tool that change a training and differ from those of the
/// option here. `rl`: the objective, as the option has it.
std::vector<PeerDefault> defaultsOf(PeerTool tool, std::string_view rl);

/// PEFT's modules for a model_type of config.json; an error if it has none.
StatusOr<nlohmann::ordered_json> peftTargets(const std::string &modelType);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PEERTOOLS_H
