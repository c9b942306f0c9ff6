// SPDX-License-Identifier: MIT

// Finds models by their name on the Hugging Face hub. Searches Hugging Face's
// own cache, which transformers, vLLM and `hf download` use too:
//
//   models--Qwen--Qwen3-0.6B/refs/main         hash of main's latest commit
//                           /snapshots/COMMIT/ links to the commit's files
//
// The cache is in $HF_HUB_CACHE, else $HF_HOME/hub, else
// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. A complete
// snapshot is used without a request to the hub. If a snapshot is missing or
// incomplete, qlora-data fetches it with Hugging Face's own library.

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

/// Parses `word` as ID or ID@REVISION. No value if it violates the hub's rules.
/// The default revision is `revision`, or main if that is empty.
std::optional<HubName> parseHubName(const std::string &word,
                                    const std::string &revision = "");

/// Returns the path of a data set's file in the cache, which may not exist.
std::string hubDataPath(const std::string &id, const std::string &commit,
                        const std::string &file);

/// Returns the snapshot's folder. Fetches the snapshot unless it is complete.
StatusOr<std::string> hubModelFolder(const HubName &name);

/// Returns the folder of the model `word` if it needs no fetch: a path relative
/// to `base`, or a complete snapshot. Else an empty text.
std::string presentModelFolder(const std::string &word, const std::string &base,
                               const std::string &revision);

/// Returns the folder of the model `word`: `word` itself if it exists or is not
/// a hub name, else the snapshot.
StatusOr<std::string> modelFolder(const std::string &word);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_HUBCACHE_H
