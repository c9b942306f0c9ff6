// SPDX-License-Identifier: MIT

// Creates, renames and removes staged folders.

#include "runtime/Export/StagedFolder.h"

#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "runtime/Base/AtomicFile.h"

namespace qlora {

namespace fs = std::filesystem;

/// Returns the path without a slash at its end.
static std::string withoutSlash(const std::string &path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal.string()
                               : normal.parent_path().string();
}

static Status cannot(const char *what, const std::string &path,
                          const std::error_code &error) {
  return Status::unavailable("cannot {} '{}': {}. Fix: -o DIR", what, path,
                             error.message());
}

Status StagedFolder::check(const std::string &target, bool overwrite) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error)))
    return Status::ok();
  if (!fs::is_directory(target, error))
    return Status::invalid("'{}' is a file. Fix: -o DIR", target);
  if (fs::is_empty(target, error))
    return Status::ok();
  if (!overwrite)
    return Status::invalid("'{}' is not empty. Fix: -o another folder, or "
                           "--overwrite, which replaces it",
                           target);
  if (!fs::exists(fs::path(target) / kExportFile, error))
    return Status::invalid("--overwrite: '{}' has no {}, so it is no earlier "
                           "export. Fix: -o another folder",
                           target, kExportFile);
  return Status::ok();
}

/// Returns a name next to `target` that isPart() recognises.
static std::string siblingOf(const std::string &target) {
  std::random_device random;
  return fmt::format("{}.part.{:08x}", target, random());
}

StatusOr<StagedFolder> StagedFolder::create(const std::string &path,
                                            bool overwrite) {
  const std::string target = withoutSlash(path);
  QLORA_RETURN_IF_ERROR(check(target, overwrite));
  std::error_code error;
  if (const fs::path parent = fs::path(target).parent_path(); !parent.empty())
    fs::create_directories(parent, error);
  if (error)
    return cannot("create", target, error);
  std::string part = siblingOf(target);
  while (!fs::create_directory(part, error)) {
    if (error)
      return cannot("create", part, error);
    part = siblingOf(target);
  }
  return StagedFolder(target, std::move(part), overwrite);
}

StagedFolder::StagedFolder(StagedFolder &&other) noexcept
    : target(std::move(other.target)),
      part(std::exchange(other.part, std::string())),
      overwrite(other.overwrite) {}

StagedFolder &StagedFolder::operator=(StagedFolder &&other) noexcept {
  std::swap(target, other.target);
  std::swap(part, other.part);
  std::swap(overwrite, other.overwrite);
  return *this;
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!part.empty())
    fs::remove_all(part, ignored);
}

Status StagedFolder::commit() {
  QLORA_RETURN_IF_ERROR(check(target, overwrite));
  std::error_code error;
  const bool replaces =
      fs::exists(target, error) && !fs::is_empty(target, error);
  const std::string old = siblingOf(target);
  if (replaces)
    fs::rename(target, old, error);
  if (!error)
    fs::rename(part, target, error);
  if (error)
    return cannot("rename the export to", target, error);
  part.clear();
  flushFolder(fs::path(target).parent_path().string());
  if (replaces)
    fs::remove_all(old, error);
  return error ? cannot("remove", old, error) : Status::ok();
}

} // namespace qlora
