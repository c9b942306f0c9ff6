// SPDX-License-Identifier: MIT

// Hashes with OpenSSL; files by Tools.h.

#include "compiler/Codegen/KernelCache.h"

#include "compiler/Codegen/Tools.h"
#include "runtime/Base/UserFiles.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <openssl/sha.h>

using namespace qlora;

static std::string sha256(std::string_view text) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char *>(text.data()), text.size(),
         reinterpret_cast<unsigned char *>(hash.data()));
  return hash;
}

std::string KernelCache::defaultFolder() {
  llvm::SmallString<128> path;
  if (!llvm::sys::path::cache_directory(path))
    return "";
  llvm::sys::path::append(path, "qlora", "kernels");
  return path.str().str();
}

std::string KernelCache::key(std::string_view text) {
  return llvm::toHex(sha256(text), /*LowerCase=*/true);
}

std::string KernelCache::fileOf(std::string_view key) const {
  return folder + "/" + std::string(key) + ".o";
}

std::optional<std::string> KernelCache::find(std::string_view key) const {
  if (folder.empty())
    return std::nullopt;
  StatusOr<std::string> file = readFile(fileOf(key));
  if (!file.isOk() || file->size() < SHA256_DIGEST_LENGTH)
    return std::nullopt;
  std::string object = file->substr(SHA256_DIGEST_LENGTH);
  if (sha256(object) != std::string_view(*file).substr(0, SHA256_DIGEST_LENGTH))
    return std::nullopt;
  return object;
}

void KernelCache::store(std::string_view key, std::string_view object) const {
  if (folder.empty() || llvm::sys::fs::create_directories(folder))
    return;
  // A cache that cannot be written costs time, nothing else.
  (void)replaceWholeFile(fileOf(key), sha256(object) + std::string(object),
                         AtomicFile::Flush::kNo);
}
