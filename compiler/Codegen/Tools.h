// SPDX-License-Identifier: MIT

// The programs that code generation runs: where they are, and running them in
// a folder of their own.

#ifndef QLORA_COMPILER_CODEGEN_TOOLS_H
#define QLORA_COMPILER_CODEGEN_TOOLS_H

#include <string>
#include <vector>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// A new empty folder under $TMPDIR, gone with its files when this is.
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

/// A program with its arguments, the name of the program first.
using Command = std::vector<std::string>;

/// The first of `names` on $PATH or in Debian's folder of LLVM 22.
/// kUnavailable, naming the Debian package, when there is none.
StatusOr<std::string> findTool(const std::vector<std::string> &names,
                               std::string_view package);

/// What the command wrote to stdout. An error has what it wrote to stderr.
StatusOr<std::string> readCommand(const Command &command);

/// Runs the commands, at most `parallel` at a time, and waits for all. The
/// error is that of the first command, in order, that failed. `progress` hears
/// how many of them have ended, one call at a time, from any thread.
Status runCommands(const std::vector<Command> &commands, unsigned parallel,
                   const ProgressListener &progress = {});

/// Writes or reads a whole file.
Status writeFile(const std::string &path, std::string_view bytes);
StatusOr<std::string> readFile(const std::string &path);

/// Makes `path` hold `bytes`, or leaves it as it was (AtomicFile.h). What is not a regular file (a pipe, /dev/null) is
/// written to directly.
Status replaceFile(const std::string &path, std::string_view bytes);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_TOOLS_H
