// SPDX-License-Identifier: MIT

// Compiled kernels on disk, by what they were compiled from. A second compile
// of the same model does not start a compiler.
//
// One file per object, <key>.o: the hash of the object (32 digits), then
// the object. A file that does not match its hash is ignored and written
// again. Files are replaced as a whole, so several compiles may share a
// folder. A folder that cannot be written to only costs time.

#ifndef QLORA_COMPILER_CODEGEN_KERNELCACHE_H
#define QLORA_COMPILER_CODEGEN_KERNELCACHE_H

#include <optional>
#include <string>
#include <string_view>

namespace qlora {

class KernelCache {
public:
  /// A cache in `folder`; nothing is kept when it is empty.
  explicit KernelCache(std::string folder) : folder(std::move(folder)) {}

  /// $XDG_CACHE_HOME/qlora/kernels, or ~/.cache without that variable; empty
  /// when neither is known.
  static std::string defaultFolder();
  /// The key of `text`, in hexadecimal.
  static std::string key(std::string_view text);

  std::optional<std::string> find(std::string_view key) const;
  void store(std::string_view key, std::string_view object) const;

private:
  std::string fileOf(std::string_view key) const;

  std::string folder;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_KERNELCACHE_H
