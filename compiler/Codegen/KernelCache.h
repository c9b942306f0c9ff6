// SPDX-License-Identifier: MIT

// A cache of compiled kernels on disk, keyed by the compiler's input. A second
// compile of the same model starts no compiler.
//
// One file per object, <key>.o: the hash of the object (32 digits), then the
// object. A file that does not match its hash is ignored and rewritten. Files
// are replaced atomically, so several compiles may share a folder. If the
// folder is not writable, compiles are only slower.

#ifndef QLORA_COMPILER_CODEGEN_KERNELCACHE_H
#define QLORA_COMPILER_CODEGEN_KERNELCACHE_H

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/Codegen/Tools.h"

namespace qlora {

class KernelCache {
public:
  /// Makes a cache in `folder`. An empty name disables caching.
  explicit KernelCache(std::string folder) : folder(std::move(folder)) {}

  /// Returns $XDG_CACHE_HOME/qlora/kernels, or ~/.cache/qlora/kernels if the
  /// variable is not set, or "" if the home folder is unknown too.
  static std::string defaultFolder();
  /// Returns the hash of `text` in hexadecimal digits, which is its key.
  static std::string key(std::string_view text);

  std::optional<std::string> find(std::string_view key) const;
  void store(std::string_view key, std::string_view object) const;

private:
  std::string fileOf(std::string_view key) const;

  std::string folder;
};

/// Compiler commands. A command whose output is cached does not run.
class CachedCommands {
public:
  /// Borrows `cache`, which must outlive this object.
  explicit CachedCommands(const KernelCache &cache) : cache(cache) {}

  /// Adds a command that writes `file`. `input` is everything that determines
  /// the file's content. If the content is cached, writes it to `file` instead.
  Status add(std::string_view input, const std::string &file, Command command);
  /// Runs the commands, at most `parallel` at a time, and caches their outputs.
  Status run(unsigned parallel, const ProgressListener &progress);

private:
  const KernelCache &cache;
  std::vector<Command> commands;
  /// The key and the file of each command's output.
  std::vector<std::pair<std::string, std::string>> outputs;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELCACHE_H
