// SPDX-License-Identifier: MIT

// Finds models that are named as on the Hugging Face hub, in Hugging Face's own
// cache, which transformers, vLLM and `hf download` use too:
//
//   models--Qwen--Qwen3-0.6B/refs/main         hash of main's latest commit
//                           /snapshots/COMMIT/ links to the commit's files
//
// in $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub,
// else ~/.cache/huggingface/hub. A complete snapshot is used as it is, without
// a request to the hub. qlora-data fetches missing or incomplete ones with
// Hugging Face's own library.

#ifndef QLORA_TOOLS_QLORA_HUBCACHE_H
#define QLORA_TOOLS_QLORA_HUBCACHE_H

#include <optional>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

struct HubName {
  std::string id;       ///< "Qwen/Qwen3-0.6B", "gpt2"
  std::string revision; ///< a branch, a tag, or a commit hash
};

/// Parses `word` as ID or ID@REVISION by the hub's rules for names, if it is
/// one. The revision defaults to `revision`, and to main if that is empty.
std::optional<HubName> parseHubName(const std::string &word,
                                    const std::string &revision = "");

/// Returns the snapshot's folder, and fetches it first unless it is complete.
StatusOr<std::string> hubModelFolder(const HubName &name);

/// Returns the folder of the model `word`: `word` itself if it exists or is not
/// a hub name, else the snapshot's folder.
StatusOr<std::string> modelFolder(const std::string &word);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_HUBCACHE_H
