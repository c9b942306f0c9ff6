// SPDX-License-Identifier: MIT

// A new folder that appears completely or not at all. Files are written into a
// sibling, NAME.part.XXXXXXXX, which is renamed at the end, and removed if
// something fails before.
//
//   QLORA_ASSIGN_OR_RETURN(StagedFolder folder,
//                          StagedFolder::create("out", /*overwrite=*/false));
//   ... write files into folder.path() ...
//   return folder.commit();

#ifndef QLORA_RUNTIME_EXPORT_STAGEDFOLDER_H
#define QLORA_RUNTIME_EXPORT_STAGEDFOLDER_H

#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

/// Name of the table of an export's proofs; marks a folder as an export.
inline constexpr const char *kExportFile = "export.json";

class StagedFolder {
public:
  /// Refuses a `target` that exists and is not empty. With `overwrite`, accepts
  /// a folder that holds an export, and replaces it.
  static Status check(const std::string &target, bool overwrite);
  static StatusOr<StagedFolder> create(const std::string &target,
                                       bool overwrite);
  StagedFolder(StagedFolder &&other) noexcept;
  StagedFolder &operator=(StagedFolder &&other) noexcept;
  /// Removes the folder unless it was committed.
  ~StagedFolder();

  /// Returns the folder to write files into.
  const std::string &path() const { return part; }
  /// Renames the folder to the target.
  Status commit();

private:
  StagedFolder(std::string target, std::string part, bool overwrite)
      : target(std::move(target)), part(std::move(part)),
        overwrite(overwrite) {}

  std::string target;
  std::string part; ///< empty: committed or moved from
  bool overwrite;
};

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_STAGEDFOLDER_H
