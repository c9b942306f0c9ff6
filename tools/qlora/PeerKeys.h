// SPDX-License-Identifier: MIT

// Configuration files of axolotl, LLaMA-Factory and TRL: what their keys mean
// here. A key is one of ours, is translated to one, has no meaning here and is
// passed over with a note, or would change the result in a way that we do not
// have and is refused. Keys that are plainly other spellings of an option are
// aliases in the option table and not here. A key without a value is not set.
// Keys that a file leaves out mean what the file's tool takes them for, where
// that changes the training (PeerTools.h).

#ifndef QLORA_TOOLS_QLORA_PEERKEYS_H
#define QLORA_TOOLS_QLORA_PEERKEYS_H

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/OptionValue.h"
#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "tools/qlora/PeerParallel.h"

namespace qlora {

/// A file, and what its meaning depends on.
struct PeerRequest {
  std::span<const YamlEntry> entries;
  std::string path;                     ///< for errors, which name the line
  std::span<const OptionSetting> flags; ///< which win over the file
  RankCounts ranks;
};

struct PeerFile {
  std::vector<YamlEntry> entries; ///< by our names
  /// One for each key that is passed over though it was meant to do something,
  /// and one for the tool of the file.
  std::vector<std::string> notes;
  /// The file leaves --lora-target-modules to PEFT, which goes by the model.
  bool hasPeftTargets = false;
};

StatusOr<PeerFile> translatePeerKeys(const PeerRequest &request);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PEERKEYS_H
