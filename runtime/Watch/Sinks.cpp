// SPDX-License-Identifier: MIT

// Creates sinks from options.

#include "runtime/Watch/Sinks.h"

#include <algorithm>

#include "runtime/Base/UserFiles.h"
#include "runtime/Watch/TensorBoard.h"
#include "runtime/Watch/TrainerLog.h"

namespace qlora {

/// Returns the most recently modified folder, for a resumed run. Folder names
/// begin with a month's name, so they do not sort by time.
static std::string newestFolder(const std::string &runs) {
  auto folders = listFolder(runs);
  std::error_code ignored;
  if (folders.isOk())
    std::erase_if(folders.value(), [&](const auto &path) {
      return !std::filesystem::is_directory(path, ignored);
    });
  if (!folders.isOk() || folders.value().empty())
    return "";
  return std::ranges::max(folders.value(), {}, [&](const auto &folder) {
    return std::filesystem::last_write_time(folder, ignored);
  });
}

static std::string loggingFolder(const Options &options, int64_t doneSteps) {
  const std::string output = options.text("output_dir");
  std::string folder = options.text("logging_dir");
  if (folder.empty() && doneSteps > 0)
    folder = newestFolder(output + "/runs");
  return folder.empty() ? defaultLoggingFolder(output) : folder;
}

Status attachSinks(Metrics &metrics, const Options &options, int64_t doneSteps,
                   int64_t totalSteps) {
  QLORA_ASSIGN_OR_RETURN(auto log, TrainerLog::open(options.text("output_dir"),
                                                    doneSteps, totalSteps));
  metrics.attach(std::move(log));
  const auto names = options.names("report_to");
  if (std::ranges::find(names, "tensorboard") == names.end())
    return Status::ok();
  // Begin after the checkpoint's step, to keep the values logged with it.
  QLORA_ASSIGN_OR_RETURN(auto board,
                         TensorBoard::open(loggingFolder(options, doneSteps),
                                           doneSteps > 0 ? doneSteps + 1 : 0));
  metrics.attach(std::move(board));
  return Status::ok();
}

} // namespace qlora
