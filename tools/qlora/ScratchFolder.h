// SPDX-License-Identifier: MIT

// A temporary folder for files of other tools, removed with its owner.

#ifndef QLORA_TOOLS_QLORA_SCRATCHFOLDER_H
#define QLORA_TOOLS_QLORA_SCRATCHFOLDER_H

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "runtime/Base/Status.h"

namespace qlora {

class ScratchFolder {
public:
  /// Creates it in TMPDIR. `purpose`: part of the folder's name, and named in
  /// errors.
  static StatusOr<ScratchFolder> create(const std::string &purpose) {
    std::error_code ignored;
    return create(purpose,
                  std::filesystem::temp_directory_path(ignored).string());
  }
  /// Creates it in `base`.
  static StatusOr<ScratchFolder> create(const std::string &purpose,
                                        const std::string &base) {
    std::string name = base + "/qlora-" + purpose + "-XXXXXX";
    if (!mkdtemp(name.data()))
      return Status::unavailable("cannot create a folder in '{}' for {}; set "
                                 "TMPDIR to another folder",
                                 base, purpose);
    return ScratchFolder(std::move(name));
  }
  ScratchFolder(ScratchFolder &&other) noexcept
      : folder(std::exchange(other.folder, "")) {}
  ScratchFolder &operator=(ScratchFolder &&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (!folder.empty())
      std::filesystem::remove_all(folder, ignored);
  }
  std::string file(const std::string &name) const {
    return folder + "/" + name;
  }

private:
  explicit ScratchFolder(std::string folder) : folder(std::move(folder)) {}
  std::string folder;
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_SCRATCHFOLDER_H
