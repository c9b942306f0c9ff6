// SPDX-License-Identifier: MIT

// Reads and writes cache files, each with the hash of its content first.

#include "compiler/Codegen/KernelCache.h"

#include "compiler/Codegen/Tools.h"
#include "runtime/Base/ContentHash.h"
#include "runtime/Base/UserFiles.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

using namespace qlora;

std::string KernelCache::defaultFolder() {
  llvm::SmallString<128> path;
  if (!llvm::sys::path::cache_directory(path))
    return "";
  llvm::sys::path::append(path, "qlora", "kernels");
  return path.str().str();
}

std::string KernelCache::key(std::string_view text) {
  ContentHash hash;
  hash.add(text);
  return hash.finish();
}

std::string KernelCache::fileOf(std::string_view key) const {
  return folder + "/" + std::string(key) + ".o";
}

std::optional<std::string> KernelCache::find(std::string_view key) const {
  if (folder.empty())
    return std::nullopt;
  StatusOr<std::string> file = readFile(fileOf(key));
  if (!file.isOk() || file->size() < ContentHash::kDigits)
    return std::nullopt;
  std::string object = file->substr(ContentHash::kDigits);
  if (!file->starts_with(KernelCache::key(object)))
    return std::nullopt;
  return object;
}

void KernelCache::store(std::string_view key, std::string_view object) const {
  if (folder.empty() || llvm::sys::fs::create_directories(folder))
    return;
  // Ignore errors: without the cache, compiles are only slower.
  (void)replaceWholeFile(fileOf(key),
                         KernelCache::key(object) + std::string(object),
                         AtomicFile::Flush::kNo);
}
