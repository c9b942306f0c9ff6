// SPDX-License-Identifier: MIT

// Lists a folder's files with their SHA-256.

#include "runtime/Base/Manifest.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/Sha256.h"
#include "runtime/Base/UserFiles.h"

namespace qlora {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

static constexpr int kFormat = 1;

namespace {

struct FileMetadata {
  uint64_t bytes = 0;
  std::string sha256;
};

} // namespace

static Status readError(const fs::path &file, int error) {
  return Status::unavailable("cannot read '{}': {}", file.string(),
                             std::strerror(error));
}

static StatusOr<FileMetadata> factsOf(const fs::path &file) {
  const FileDescriptor opened(
      open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!opened.isOpen())
    return readError(file, errno);
  FileMetadata facts;
  Sha256 hash;
  std::vector<char> window(size_t{1} << 20);
  while (true) {
    const ssize_t got = read(opened.get(), window.data(), window.size());
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return readError(file, errno);
    if (got == 0)
      break;
    hash.add(window.data(), static_cast<size_t>(got));
    facts.bytes += static_cast<uint64_t>(got);
  }
  facts.sha256 = hash.finish();
  return facts;
}

/// Returns sorted paths of the files of `folder`, except the manifest.
static StatusOr<std::vector<std::string>> filesOf(const std::string &folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(folder, error);
       !error && entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    std::string name = entry->path().lexically_relative(folder).string();
    if (!entry->is_directory(error) && name != kManifestFile)
      files.push_back(std::move(name));
  }
  if (error)
    return Status::unavailable("cannot read '{}': {}", folder, error.message());
  std::ranges::sort(files);
  return files;
}

static Status flushFile(const fs::path &file) {
  const FileDescriptor opened(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (opened.isOpen() && fsync(opened.get()) == 0)
    return Status::ok();
  const bool isFull = errno == ENOSPC || errno == EDQUOT;
  return Status::error(
      isFull ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
      "cannot flush '{}': {}", file.string(), std::strerror(errno));
}

Status writeManifest(const std::string &folder, const ordered_json &facts) {
  QLORA_ASSIGN_OR_RETURN(const auto files, filesOf(folder));
  ordered_json object = {
      {"format", kFormat}, {"facts", facts}, {"files", ordered_json::object()}};
  for (const std::string &name : files) {
    QLORA_RETURN_IF_ERROR(flushFile(fs::path(folder) / name));
    QLORA_ASSIGN_OR_RETURN(const FileMetadata file,
                           factsOf(fs::path(folder) / name));
    object["files"][name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  }
  object["sha256"] = sha256(dumpJson(object));
  // replaceWholeFile also flushes the folder, and so the other files' names.
  return replaceWholeFile(folder + "/" + kManifestFile,
                          dumpJson(object, 2) + "\n");
}

/// Returns the manifest; fails if it was changed after the writer made it.
static StatusOr<ordered_json> readManifest(const std::string &folder) {
  const std::string path = folder + "/" + kManifestFile;
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  ordered_json object =
      ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Status damaged = Status::dataLoss("'{}' is damaged", path);
  if (!object.is_object() || !object.contains("sha256") ||
      !object.contains("files") || !object.contains("facts"))
    return damaged;
  const ordered_json seal = object["sha256"];
  object.erase("sha256");
  // Compare the text, not only the values, to detect any changed character.
  ordered_json whole = object;
  whole["sha256"] = seal;
  if (seal != sha256(dumpJson(object)) || dumpJson(whole, 2) + "\n" != text)
    return damaged;
  if (object["format"] != kFormat)
    return Status::dataLoss(
        "'{}' has format {}, but this version reads format {}", path,
        dumpJson(object["format"]), kFormat);
  return object;
}

static Status lost(const std::string &folder, const std::string &name,
                   std::string_view what) {
  return Status::dataLoss("'{}' {}", (fs::path(folder) / name).string(), what);
}

StatusOr<ordered_json> verifyManifest(const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(ordered_json object, readManifest(folder));
  for (const auto &[name, expected] : object["files"].items()) {
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(fs::path(folder) / name, ignored)))
      return lost(folder, name, "is missing");
    QLORA_ASSIGN_OR_RETURN(const FileMetadata file,
                           factsOf(fs::path(folder) / name));
    if (expected["bytes"] != file.bytes)
      return lost(folder, name,
                  fmt::format("is damaged: it has {} bytes instead of {}",
                              file.bytes, dumpJson(expected["bytes"])));
    if (expected["sha256"] != file.sha256)
      return lost(folder, name, "is damaged: its SHA-256 does not match");
  }
  return object["facts"];
}

StatusOr<ordered_json> readMetadata(const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(const ordered_json object, readManifest(folder));
  return object["facts"];
}

std::string sha256(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes.data(), bytes.size());
  return hash.finish();
}

StatusOr<std::string> sha256OfFile(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(FileMetadata facts, factsOf(path));
  return facts.sha256;
}

} // namespace qlora
