// SPDX-License-Identifier: MIT

// Names, renames and removes checkpoints.

#include "runtime/Checkpoint/CheckpointFolder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <random>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Manifest.h"
#include "runtime/Base/UserFiles.h"

namespace qlora {

namespace fs = std::filesystem;

static constexpr std::string_view kPrefix = "checkpoint-";
static constexpr std::string_view kUnfinished = ".part.new";
/// Suffix of a checkpoint that an earlier version of qlora was replacing.
static constexpr std::string_view kSetAside = ".part.new_old";
static constexpr std::string_view kReplaced = ".replaced";

int64_t checkpointStep(const std::string &folder) {
  const std::string name = fs::path(folder).filename().string();
  int64_t step = -1;
  if (!name.starts_with(kPrefix))
    return -1;
  const char *const end = name.data() + name.size();
  const auto [last, error] =
      std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && last == end ? step : -1;
}

std::string checkpointFolder(const std::string &output, int64_t step) {
  return fmt::format("{}/{}{}", output, kPrefix, step);
}

std::string unfinishedCheckpoint(const std::string &folder) {
  return folder + std::string(kUnfinished);
}

/// Returns the entries of `output`; empty if it cannot be read.
static std::vector<std::string> entriesOf(const std::string &output,
                                          Status *error = nullptr) {
  std::vector<std::string> entries;
  auto files = listFolder(output);
  if (files.isOk())
    entries.assign(files->begin(), files->end());
  else if (error && files.status().code() != StatusCode::kNotFound)
    *error = files.status();
  return entries;
}

/// Returns `entry` without `end` if that is a checkpoint-N; else "".
static std::string withoutEnd(const std::string &entry, std::string_view end) {
  if (!entry.ends_with(end))
    return "";
  const std::string folder = entry.substr(0, entry.size() - end.size());
  return checkpointStep(folder) >= 0 ? folder : "";
}

std::vector<std::string> checkpointsIn(const std::string &output,
                                       Status *error) {
  std::vector<std::string> found = entriesOf(output, error);
  std::erase_if(found,
                [](const auto &entry) { return checkpointStep(entry) < 0; });
  std::ranges::sort(found, std::greater(), checkpointStep);
  return found;
}

std::string newRunId() {
  std::random_device random;
  std::string id;
  for (int word = 0; word < 4; ++word)
    id += fmt::format("{:08x}", random());
  return id;
}

std::string runIdOf(const nlohmann::ordered_json &facts) {
  return facts.value("run", "");
}

std::string runIdIn(const std::string &output) {
  const auto text = readWholeFile(output + "/" + kRunFile);
  return text.isOk() ? text.value().substr(0, text.value().find('\n')) : "";
}

bool isReplaced(const std::string &folder) {
  return !withoutEnd(folder, kReplaced).empty();
}

static Status cannotReplace(const std::string &folder,
                            const std::error_code &error) {
  return Status::unavailable(
      "cannot rename '{}', which this run would replace: {}. Fix: remove it, "
      "or choose another --output-dir",
      folder, error.message());
}

/// Returns whether the checkpoint's metadata has a run id other than `id`.
static bool isOfAnother(const std::string &folder, const std::string &id) {
  const auto facts = readMetadata(folder);
  return facts.isOk() && runIdOf(facts.value()) != id;
}

StatusOr<std::vector<std::string>>
takeFolder(const std::string &output, const std::string &id, int64_t lastStep) {
  const std::string file = output + "/" + kRunFile;
  std::error_code error;
  // Change the id first. If the run is then killed, 'latest' ignores the
  // checkpoints of other runs that are not renamed yet.
  if (id.empty())
    fs::remove(file, error);
  else
    QLORA_RETURN_IF_ERROR(replaceWholeFile(file, id + "\n"));
  std::vector<std::string> names;
  for (const std::string &folder : checkpointsIn(output))
    if (checkpointStep(folder) > lastStep || isOfAnother(folder, id))
      names.push_back(fs::path(folder).filename().string());
  if (names.empty())
    return names;
  for (const std::string &entry : entriesOf(output))
    if (isReplaced(entry))
      fs::remove_all(entry, error);
  for (const std::string &name : names) {
    const std::string from = output + "/" + name;
    fs::rename(from, from + std::string(kReplaced), error);
    if (error)
      return cannotReplace(from, error);
  }
  flushFolder(output);
  return names;
}

bool hasUnfinished(const std::string &output) {
  return std::ranges::any_of(entriesOf(output), [](const auto &entry) {
    return !withoutEnd(entry, kUnfinished).empty() ||
           !withoutEnd(entry, kSetAside).empty();
  });
}

void recoverCheckpoints(const std::string &output) {
  const std::vector<std::string> entries = entriesOf(output);
  std::error_code ignored;
  for (const std::string_view end : {kUnfinished, kSetAside})
    for (const std::string &entry : entries) {
      const std::string folder = withoutEnd(entry, end);
      if (!folder.empty() && !fs::exists(folder, ignored) &&
          verifyManifest(entry).isOk()) {
        fs::rename(entry, folder, ignored);
        flushFolder(output);
      }
    }
}

void removeUnfinished(const std::string &output) {
  std::error_code ignored;
  for (const std::string &entry : entriesOf(output)) {
    const fs::path path = entry;
    if (path.filename().string().starts_with(kPrefix) &&
        path.stem().extension() == ".part")
      fs::remove_all(path, ignored);
  }
}

void removeOlderCheckpoints(const std::string &output, int64_t limit,
                            int64_t best) {
  if (limit == 0)
    return;
  int64_t kept = 0;
  for (const std::string &folder : checkpointsIn(output)) {
    if (kept++ < limit || checkpointStep(folder) == best)
      continue;
    // Rename the folder first: if this process is killed while it removes the
    // files, the remaining files must not pass for a complete checkpoint.
    const std::string removed = folder + ".part.old";
    std::error_code error;
    fs::rename(folder, removed, error);
    if (!error)
      fs::remove_all(removed, error);
  }
}

} // namespace qlora
