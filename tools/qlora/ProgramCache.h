// SPDX-License-Identifier: MIT

// Cache of compiled programs, so that the same model with the same options is
// compiled once. An entry is programs/KEY-COMPILER.so in the user's cache. KEY
// is a hash of everything that determines the program. COMPILER is a hash of
// the tools that made it. If the tools are not installed, any COMPILER matches;
// qlora-run then reports a format that is too old.
//
// The tools write complete files or none, so two runs can compile the same
// program at once. A damaged program fails its checksum and is compiled again.
// Above the size limit, the least recently used entries are removed.

#ifndef QLORA_TOOLS_QLORA_PROGRAMCACHE_H
#define QLORA_TOOLS_QLORA_PROGRAMCACHE_H

#include <string>

#include <nlohmann/json.hpp>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Hashes the inputs of qlora-import: the arithmetic in config.json, settings
/// that affect only training, such as dropout, and the names, types and shapes
/// of the model's tensors. `modelKeys`: the importer's flags.
Status addModel(ContentHash &hash, const std::string &folder,
                const nlohmann::ordered_json &modelKeys);

/// Hashes this machine's CPU features, for `--march native`.
void addInstructions(ContentHash &hash);

class ProgramCache {
public:
  /// Opens the entry of `key`. kUnavailable if the user has no cache folder.
  static StatusOr<ProgramCache> open(const std::string &key);

  /// Returns the path of an intact entry, or an empty text. Sets `note` if the
  /// entry is damaged.
  std::string find(std::string &note) const;

  /// Paths that qlora-import and qloracc write to.
  std::string modelPath() const { return stem + ".mlir"; }
  std::string programPath() const { return stem + ".so"; }

  /// Creates the folder. Removes old entries if the total exceeds kLimit bytes.
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
