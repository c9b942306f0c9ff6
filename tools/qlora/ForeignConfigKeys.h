// SPDX-License-Identifier: MIT

// Translates configuration files of axolotl, LLaMA-Factory and TRL. A key is an
// option of ours or is translated to one. Others are ignored with a note, or
// refused if they would change the result in an unsupported way. Other
// spellings of an option are aliases in the option table. A key without a value
// is not set. An absent key has the default of the file's tool if that changes
// the training (ForeignTools.h).

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

/// A file, and the values that its translation depends on.
struct ForeignRequest {
  std::span<const YamlEntry> entries;
  std::string path;                     ///< for errors, which name the line
  std::span<const OptionSetting> flags; ///< override the file
  RankCounts ranks;
};

struct ForeignFile {
  std::vector<YamlEntry> entries; ///< with our option names
  /// One for each ignored key that would have an effect in its tool, and one
  /// that names the tool of the file.
  std::vector<std::string> notes;
  /// The file leaves --lora-target-modules to PEFT (by model type).
  bool hasPeftTargets = false;
};

StatusOr<ForeignFile> translateForeignConfigKeys(const ForeignRequest &request);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNCONFIGKEYS_H
