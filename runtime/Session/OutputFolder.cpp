// SPDX-License-Identifier: MIT

// Checks the folder's content and locks it.

#include "runtime/Session/OutputFolder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Checkpoint/CheckpointFolder.h"
#include "runtime/Checkpoint/Resume.h"
#include "runtime/Session/SessionRecord.h"
#include "runtime/Watch/ReportPage.h"
#include "runtime/Watch/RunFolder.h"
#include "runtime/Watch/TrainerLog.h"

namespace qlora {

namespace fs = std::filesystem;

static std::string lockOf(const std::string &folder) {
  return folder + "/.lock";
}

bool trains(const Options &options) {
  return options.integer("max_steps") > 0 ||
         options.number("num_train_epochs") > 0;
}

/// Returns whether a file may be left by a run that ended without an adapter.
static bool isLeftOver(const fs::path &file) {
  const std::string name = file.filename();
  if (name == kStagingFolder && holdsAdapter(file))
    return false;
  constexpr std::string_view kNames[] = {
      kSettingsFile,    kMetricsFile, "gemm_table.json", kTrainerLogFile,
      "runs",           kPlanFile,    kEnvironmentFile,  kSessionsFolder,
      kReportFile,      kStagingFolder, ".lock", kRunFile};
  return std::ranges::find(kNames, name) != std::end(kNames) ||
         file.stem().extension() == ".part"; // a temporary file
}

/// Returns a list such as "a, b, c and 2 more".
static std::string listed(const std::vector<std::string> &names) {
  constexpr size_t kMost = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > kMost)
    text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

static Status checkContent(const std::string &path, bool mayOverwrite) {
  const auto files = listFolder(path);
  if (files.status().code() == StatusCode::kNotFound)
    return Status::ok();
  if (!files.isOk())
    return Status::unavailable("cannot use '{}' as the output folder: {}", path,
                               files.status().message());
  std::vector<std::string> found;
  for (const fs::path &file : files.value())
    if (!isLeftOver(file))
      found.push_back(file.filename());
  if (found.empty() || mayOverwrite)
    return Status::ok();
  const bool hasAdapter = std::ranges::any_of(found, [](const auto &name) {
    return name.starts_with("adapter_") || name.starts_with("checkpoint-") ||
           name == kStagingFolder;
  });
  return Status::invalid(
      "the output folder '{}' {} ({}). Fix: choose another --output-dir, "
      "overwrite it with --overwrite-output-dir{}",
      path, hasAdapter ? "holds an adapter" : "is not empty", listed(found),
      checkpointsIn(path).empty()
          ? ""
          : ", or resume with --resume-from-checkpoint latest");
}

Status checkOutputFolder(const Options &options) {
  if (options.boolean("push_to_hub") && !trains(options))
    return Status::invalid("{} needs an adapter to push, but this run has no "
                           "training steps. Fix: leave it out",
                           options.spelling("push_to_hub"));
  return checkContent(options.text("output_dir"),
                      options.boolean("overwrite_output_dir") ||
                          resumesInto(options) || !trains(options));
}

/// Returns "process 12 of HOST", as the run that holds the lock wrote it.
static std::string readHolder(int descriptor) {
  std::array<char, 300> text;
  const ssize_t bytes = pread(descriptor, text.data(), text.size(), 0);
  return std::string(text.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0);
}

static void writeHolder(int descriptor) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  // An error is ignored here, since the text is only for a message.
  if (ftruncate(descriptor, 0) == 0)
    dprintf(descriptor, "process %d of %s", getpid(), host.data());
}

/// Returns whether the path still names the descriptor's file: an earlier run
/// may have removed it between open and lock.
static bool isFileAt(int descriptor, const std::string &path) {
  struct stat ours {
  }, there{};
  return fstat(descriptor, &ours) == 0 && stat(path.c_str(), &there) == 0 &&
         ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

Status OutputFolder::lock() {
  const std::string file = lockOf(path);
  while (true) {
    FileDescriptor opened(
        open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!opened.isOpen())
      return Status::unavailable("cannot write into the output folder '{}': {}",
                                 path, std::strerror(errno));
    const int error = flock(opened.get(), LOCK_EX | LOCK_NB) ? errno : 0;
    if (error == EWOULDBLOCK)
      return Status::unavailable("another run ({}) is writing into '{}'; wait "
                                 "for its end, or choose another --output-dir",
                                 readHolder(opened.get()), path);
    if (error)
      warning = fmt::format("cannot lock '{}' ({}): a second run into the same "
                            "folder would not be detected",
                            file, std::strerror(error));
    else if (!isFileAt(opened.get(), file))
      continue;
    lockFile = std::move(opened);
    writeHolder(lockFile.get());
    return Status::ok();
  }
}

/// Removes files that a killed run was writing (AtomicFile.h). No other process
/// writes into the folder now.
static void removeParts(const std::string &path) {
  const auto files = listFolder(path);
  if (!files.isOk())
    return;
  for (const fs::path &file : files.value()) {
    std::error_code ignored;
    if (AtomicFile::isPart(file.string()) &&
        fs::is_regular_file(fs::symlink_status(file, ignored)))
      fs::remove(file, ignored);
  }
}

StatusOr<OutputFolder> OutputFolder::claim(const Options &options) {
  // Check before anything is changed, and again under the lock.
  QLORA_RETURN_IF_ERROR(checkOutputFolder(options));
  const std::string path = options.text("output_dir");
  std::error_code error;
  const bool isNew = fs::create_directories(path, error);
  if (error)
    return Status::unavailable("cannot create '{}': {}", path, error.message());
  OutputFolder folder(path, isNew);
  QLORA_RETURN_IF_ERROR(folder.lock());
  const bool isAlone = trains(options) && folder.warning.empty();
  if (isAlone)
    recoverCheckpoints(path);
  QLORA_RETURN_IF_ERROR(checkOutputFolder(options));
  if (isAlone)
    removeParts(path);
  return folder;
}

OutputFolder::~OutputFolder() {
  if (!lockFile.isOpen())
    return;
  // Unlink while locked, so that isFileAt() fails for a process that waits.
  unlink(lockOf(path).c_str());
  if (isNew)
    rmdir(path.c_str());
}

StatusOr<std::optional<OutputFolder>> claimOutput(const Options &options,
                                                  RankGroup &group) {
  std::optional<OutputFolder> output;
  Status refusal;
  if (group.rank() == 0) {
    auto claimed = OutputFolder::claim(options);
    refusal = claimed.status();
    if (claimed.isOk())
      output.emplace(std::move(*claimed));
  }
  int64_t refusals[] = {refusal.isOk() ? 0 : 1};
  const Status told = group.sum(refusals);
  QLORA_RETURN_IF_ERROR(refusal);
  QLORA_RETURN_IF_ERROR(told);
  if (refusals[0] > 0)
    return Status::error(
        StatusCode::kAborted,
        "rank 0 cannot use the output folder; see the error of rank 0");
  return output;
}

} // namespace qlora
