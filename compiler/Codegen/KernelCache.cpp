// SPDX-License-Identifier: MIT

// Reads and writes cache files, each with the hash of its content first.

#include "compiler/Codegen/KernelCache.h"

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/UserFiles.h"

using namespace qlora;

std::string KernelCache::defaultFolder() {
  std::string folder = userCacheFolder();
  return folder.empty() ? folder : folder + "/kernels";
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
  StatusOr<std::string> file = readWholeFile(fileOf(key));
  if (!file.isOk() || file->size() < ContentHash::kDigits)
    return std::nullopt;
  std::string object = file->substr(ContentHash::kDigits);
  if (!file->starts_with(KernelCache::key(object)))
    return std::nullopt;
  return object;
}

void KernelCache::store(std::string_view key, std::string_view object) const {
  // Ignore errors: without the cache, compiles are only slower.
  if (!folder.empty())
    (void)replaceWholeFile(fileOf(key),
                           KernelCache::key(object) + std::string(object),
                           AtomicFile::Flush::kNo);
}

Status CachedCommands::add(std::string_view input, const std::string &file,
                           Command command) {
  std::string key = KernelCache::key(input);
  if (std::optional<std::string> content = cache.find(key))
    return writeFile(file, *content);
  commands.push_back(std::move(command));
  outputs.emplace_back(std::move(key), file);
  return Status::ok();
}

Status CachedCommands::run(unsigned parallel,
                           const ProgressListener &progress) {
  QLORA_RETURN_IF_ERROR(runCommands(commands, parallel, progress));
  for (const auto &[key, file] : outputs) {
    QLORA_ASSIGN_OR_RETURN(std::string content, readWholeFile(file));
    cache.store(key, content);
  }
  return Status::ok();
}
