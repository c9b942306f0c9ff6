// SPDX-License-Identifier: MIT

// Configuration files of axolotl, LLaMA-Factory and TRL: what their keys mean
// here. A key is one of ours, is translated to one, has no meaning here and is
// passed over with a note, or would change the result in a way that we do not
// have and is refused. Keys that are plainly other spellings of an option are
// aliases in the option table and not here.

#ifndef QLORA_TOOLS_QLORA_PEERKEYS_H
#define QLORA_TOOLS_QLORA_PEERKEYS_H

#include <span>
#include <string>
#include <vector>

#include "runtime/Base/OptionValue.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// The entries by our names. `path` is for errors, which name the line;
/// `notes` gets one for each key that is passed over though it was meant to do
/// something.
StatusOr<std::vector<YamlEntry>>
translatePeerKeys(std::span<const YamlEntry> entries, const std::string &path,
                  std::vector<std::string> &notes);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PEERKEYS_H
