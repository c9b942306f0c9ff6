// SPDX-License-Identifier: MIT

// Translates configuration files of axolotl, LLaMA-Factory and TRL. A key that
// is one of our options, or an alias of one, is kept. Another key is translated
// to an option, ignored with a note, or refused if it would change the result
// in an unsupported way. A key without a value is not set. An absent key gets
// the default of the file's tool if that changes the training (ForeignTools.h).

#ifndef QLORA_TOOLS_QLORA_FOREIGNCONFIGKEYS_H
#define QLORA_TOOLS_QLORA_FOREIGNCONFIGKEYS_H

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/OptionValue.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "tools/qlora/ForeignParallel.h"

namespace qlora {

/// A configuration file, and the values that its translation depends on.
struct ForeignRequest {
  std::span<const YamlEntry> entries;
  std::string path;                     ///< for errors, which name the line
  std::span<const OptionSetting> flags; ///< override the file
  RankCounts ranks;
};

struct ForeignFile {
  std::vector<YamlEntry> entries; ///< with our option names
  /// A line for each ignored key that has an effect in the file's tool, and a
  /// line that names the tool.
  std::vector<std::string> notes;
  /// The file leaves --lora-target-modules to PEFT (by model type).
  bool hasPeftTargets = false;
};

StatusOr<ForeignFile> translateForeignConfigKeys(const ForeignRequest &request);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNCONFIGKEYS_H
