// SPDX-License-Identifier: MIT

// Questions to the file system.

#include "runtime/Base/OutputFile.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

namespace fs = std::filesystem;

namespace qlora {

Status checkOutputFile(const std::string &path) {
  std::error_code ignored;
  const fs::path file(path);
  if (fs::is_directory(file, ignored))
    return Status::invalid("cannot write '{}': it is a folder; name a file in "
                           "it",
                           path);
  const fs::path folder = file.parent_path();
  if (folder.empty() || fs::is_directory(folder, ignored))
    return Status::ok();
  return Status::invalid("cannot write '{}': there is no folder '{}'", path,
                         folder.string());
}

Status checkFreeSpace(const std::string &folder, uint64_t bytes) {
  struct statvfs disk {};
  // Some file systems of users' own say nothing.
  if (statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0)
    return Status::ok();
  // What is kept back is kept for the superuser.
  const uint64_t blocks = geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
  const uint64_t free = blocks * disk.f_frsize;
  if (bytes <= free)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted,
                       "the disk of '{}' is too full: {} of {} bytes are "
                       "missing",
                       folder, bytes - free, bytes);
}

} // namespace qlora
