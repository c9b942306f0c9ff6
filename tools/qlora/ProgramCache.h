// SPDX-License-Identifier: MIT

// Cache of compiled programs, so that the same model with the same options is
// compiled once. An entry is programs/KEY-COMPILER.so in the user's cache: KEY
// is a hash of everything that determines the program, COMPILER a hash of the
// tools that made it. If those tools are not installed, an entry of any
// compiler is used (qlora-run reports a format that is too old).
//
// The tools write complete files or none, so two runs can compile the same
// program at once. A damaged program is detected by its seal and compiled
// again. Above the size limit the least recently used entries are removed.

#ifndef QLORA_TOOLS_QLORA_PROGRAMCACHE_H
#define QLORA_TOOLS_QLORA_PROGRAMCACHE_H

#include <string>

#include <nlohmann/json.hpp>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Hashes what qlora-import reads from a model folder: the arithmetic that
/// config.json describes, training-only settings such as dropout, and names,
/// types and shapes of its tensors. `dropout`: the importer's dropout flags.
Status addModel(ContentHash &hash, const std::string &folder,
                const nlohmann::ordered_json &dropout);

/// Hashes this machine's CPU features, for `--march native`.
void addInstructions(ContentHash &hash);

class ProgramCache {
public:
  /// kUnavailable if the user has no cache folder.
  static StatusOr<ProgramCache> open(const std::string &key);

  /// Returns the path of an intact entry, or empty. `note` describes a damaged
  /// entry.
  std::string find(std::string &note) const;

  /// Output paths for qlora-import and qloracc.
  std::string modelPath() const { return stem + ".mlir"; }
  std::string programPath() const { return stem + ".so"; }

  /// Makes the folder, and removes old entries above kLimit (bytes).
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
