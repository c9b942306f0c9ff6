// SPDX-License-Identifier: MIT

// Models by their names on the Hugging Face hub. They lie in Hugging Face's
// own cache, where transformers, vLLM and `hf download` put them too:
//
//   models--Qwen--Qwen3-0.6B/refs/main         the commit that main was
//                           /snapshots/COMMIT/ links to the files of it
//
// in $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub,
// else ~/.cache/huggingface/hub. What is there whole is taken as it is,
// without asking the hub; what is not, or only in part, is fetched by
// qlora-data, with Hugging Face's own library.

#ifndef QLORA_TOOLS_QLORA_HUBMODEL_H
#define QLORA_TOOLS_QLORA_HUBMODEL_H

#include <optional>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

struct HubName {
  std::string id;       ///< "Qwen/Qwen3-0.6B", "gpt2"
  std::string revision; ///< a branch, a tag, or the hash of a commit
};

/// `word` as ID or ID@REVISION by the hub's rules for names, or nothing.
/// Without a revision it is `revision`, and main where that is empty too.
std::optional<HubName> parseHubName(const std::string &word,
                                    const std::string &revision = "");

/// The folder of the snapshot, fetched where it is not whole.
StatusOr<std::string> hubModelFolder(const HubName &name);

/// The folder of a model that is given as `word`: that folder where there is
/// one or `word` is no name of the hub, else the snapshot's.
StatusOr<std::string> modelFolder(const std::string &word);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_HUBMODEL_H
