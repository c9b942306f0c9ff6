// SPDX-License-Identifier: MIT

// Finds and runs the programs that code generation needs (clang, lld, nvcc).
// They read and write files in a temporary folder.

#ifndef QLORA_COMPILER_CODEGEN_TOOLS_H
#define QLORA_COMPILER_CODEGEN_TOOLS_H

#include <string>
#include <vector>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// A new empty folder under $TMPDIR. The destructor removes it with its files.
class ScratchFolder {
public:
  static StatusOr<ScratchFolder> create();
  ScratchFolder(ScratchFolder &&other) : path(std::move(other.path)) {
    other.path.clear();
  }
  ScratchFolder &operator=(ScratchFolder &&) = delete;
  ~ScratchFolder();

  std::string file(std::string_view name) const {
    return path + "/" + std::string(name);
  }

private:
  explicit ScratchFolder(std::string path) : path(std::move(path)) {}
  std::string path;
};

/// A program's name, then its arguments.
using Command = std::vector<std::string>;

/// Returns the path of the first of `names` in this program's folder, on $PATH
/// or in Debian's LLVM 22 folder. If there is none, the error kUnavailable
/// names the Debian package.
StatusOr<std::string> findTool(const std::vector<std::string> &names,
                               std::string_view package);

/// Returns the command's stdout. The error of a failed command contains the
/// first lines of its output.
StatusOr<std::string> readCommand(const Command &command);

/// Runs the commands, at most `parallel` at a time, and waits for all. Returns
/// the error of the first failed command in list order. Calls `progress` with
/// the number of finished commands, one call at a time, from any thread.
Status runCommands(const std::vector<Command> &commands, unsigned parallel,
                   const ProgressListener &progress = {});

Status writeFile(const std::string &path, std::string_view bytes);

/// Replaces the contents of `path` atomically (AtomicFile.h). Anything but a
/// regular file (a pipe, /dev/null) is written directly.
Status replaceFile(const std::string &path, std::string_view bytes);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_TOOLS_H
