// SPDX-License-Identifier: MIT

// Runs programs and handles files, on top of LLVM's portable layer.

#include "compiler/Codegen/Tools.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

#include "runtime/Base/FindProgram.h"
#include "runtime/Base/UserFiles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

using namespace qlora;
using llvm::StringRef;

static constexpr const char *kLlvmFolder = "/usr/lib/llvm-22/bin";

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

StatusOr<ScratchFolder> ScratchFolder::create() {
  llvm::SmallString<128> path;
  if (std::error_code error =
          llvm::sys::fs::createUniqueDirectory("qloracc", path))
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot make a temporary folder: {}; set TMPDIR to a "
                         "folder with free space", error.message());
  return ScratchFolder(path.str().str());
}

ScratchFolder::~ScratchFolder() {
  if (!path.empty())
    llvm::sys::fs::remove_directories(path);
}

Status qlora::writeFile(const std::string &path, std::string_view bytes) {
  std::error_code error;
  llvm::raw_fd_ostream stream(path, error);
  if (!error) {
    stream << StringRef(bytes.data(), bytes.size());
    stream.close();
    error = stream.error();
    stream.clear_error();
  }
  if (error)
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot write '{}': {}", path, error.message());
  return Status::ok();
}

Status qlora::replaceFile(const std::string &path, std::string_view bytes) {
  llvm::sys::fs::file_status status;
  bool exists = !llvm::sys::fs::status(path, status);
  if (exists && !llvm::sys::fs::is_regular_file(status))
    return writeFile(path, bytes);
  // Replace the target of a symbolic link, not the link.
  llvm::SmallString<128> target(path);
  if (exists)
    llvm::sys::fs::real_path(path, target);
  // Do not create a missing folder: the name is probably mistyped.
  QLORA_ASSIGN_OR_RETURN(AtomicFile file,
                         AtomicFile::create(target.str().str()));
  QLORA_RETURN_IF_ERROR(file.write(bytes));
  return file.commit();
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

StatusOr<std::string> qlora::findTool(const std::vector<std::string> &names,
                                      std::string_view package) {
  // A wheel has the programs in the folder of qloracc.
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (const std::string &name : names)
    if (auto path = findProgram((self.parent_path() / name).string()))
      return *path;
  for (const std::string &name : names)
    if (std::optional<std::string> path = findProgram(name, kLlvmFolder))
      return *path;
  return Status::unavailable(
      "no {} on PATH or in {}; install the Debian package {}",
      fmt::join(names, " or "), kLlvmFolder, package);
}

/// Runs a command, whose stdout and stderr go to the file `output`.
static Status runCommand(const Command &command, const std::string &output) {
  llvm::SmallVector<StringRef> arguments(command.begin(), command.end());
  std::optional<StringRef> redirects[] = {StringRef(""), StringRef(output),
                                          StringRef(output)};
  std::string reason;
  bool failed = false;
  const int code = llvm::sys::ExecuteAndWait(
      command.front(), arguments, /*Env=*/std::nullopt, redirects,
      /*SecondsToWait=*/0, /*MemoryLimit=*/0, &reason, &failed);
  if (failed)
    return Status::unavailable("cannot run {}: {}", command.front(), reason);
  if (code == 0)
    return Status::ok();
  const StatusOr<std::string> text = readWholeFile(output);
  const StringRef lines = text.isOk() ? StringRef(text.value()) : StringRef();
  // Report only the first lines, which name the cause.
  size_t end = lines.find('\n', std::min<size_t>(lines.size(), 400));
  return Status::error(
      StatusCode::kInternal, "{} failed ({}): {}", command.front(),
      reason.empty() ? fmt::format("exit code {}", code) : reason,
      lines.take_front(end).rtrim().str());
}

Status qlora::runCommands(const std::vector<Command> &commands,
                          unsigned parallel, const ProgressListener &progress) {
  QLORA_ASSIGN_OR_RETURN(ScratchFolder folder, ScratchFolder::create());
  std::vector<Status> results(commands.size());
  std::atomic<size_t> next = 0;
  std::mutex reporting;
  size_t ended = 0; // guarded by `reporting`
  const auto report = [&](size_t more) {
    const std::scoped_lock lock(reporting);
    ended += more;
    if (progress)
      progress(ended, commands.size());
  };
  report(0);
  auto work = [&] {
    for (size_t i = next++; i < commands.size(); i = next++) {
      results[i] = runCommand(commands[i], folder.file(fmt::format("{}", i)));
      report(1);
    }
  };
  {
    std::vector<std::jthread> workers;
    for (size_t i = 1; i < std::min<size_t>(parallel, commands.size()); ++i)
      workers.emplace_back(work);
    work();
  }
  for (const Status &result : results)
    QLORA_RETURN_IF_ERROR(result);
  return Status::ok();
}

StatusOr<std::string> qlora::readCommand(const Command &command) {
  QLORA_ASSIGN_OR_RETURN(ScratchFolder folder, ScratchFolder::create());
  const std::string output = folder.file("output");
  QLORA_RETURN_IF_ERROR(runCommand(command, output));
  return readWholeFile(output);
}
