// SPDX-License-Identifier: MIT

// Two questions to the file system.

#include "runtime/Base/OutputFile.h"

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

} // namespace qlora
