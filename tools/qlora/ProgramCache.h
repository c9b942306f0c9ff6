// SPDX-License-Identifier: MIT

// Compiled programs that are kept, so that the same model with the same
// options is compiled once. An entry is programs/KEY-COMPILER.so in the user's
// cache: KEY is a hash of all that decides what is in a program, COMPILER one
// of the tools that made it. Where those tools are not installed, an entry of
// any compiler is taken (qlora-run says when its format is too old).
//
// The tools write whole files or none, so that two runs can compile the same
// program at once. What is damaged is seen by the seal of a program and
// compiled again. The least recently used go first when there is too much.

#ifndef QLORA_TOOLS_QLORA_PROGRAMCACHE_H
#define QLORA_TOOLS_QLORA_PROGRAMCACHE_H

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Adds what qlora-import makes of a model folder: the arithmetic that its
/// config.json describes, what is dropped and left out in training, and names,
/// types and shapes of its tensors. `dropout`: the importer's flags of it.
Status addModel(ContentHash &hash, const std::string &folder,
                const nlohmann::ordered_json &dropout);

/// Adds the instructions that this machine has, for `--march native`.
void addInstructions(ContentHash &hash);

class ProgramCache {
public:
  /// kUnavailable where the user has no cache folder.
  static StatusOr<ProgramCache> open(const std::string &key);

  /// An entry that is whole, or empty. `note` says what was wrong with one
  /// that is not.
  std::string find(std::string &note) const;

  /// Where qlora-import and qloracc put their files.
  std::string modelPath() const { return stem + ".mlir"; }
  std::string programPath() const { return stem + ".so"; }

  /// Makes the folder, and room in it: at most kLimit is kept.
  Status prepare() const;

  static constexpr uint64_t kLimit = uint64_t(2) << 30;

private:
  std::string folder;
  std::string key;
  std::string stem; ///< folder/KEY-COMPILER
  bool hasCompiler = false;
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PROGRAMCACHE_H
