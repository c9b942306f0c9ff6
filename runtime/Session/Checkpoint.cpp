// SPDX-License-Identifier: MIT

// Writing of checkpoints.

#include "runtime/Session/Checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "runtime/Base/Exceptions.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/Manifest.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Session/Adapter.h"
#include "runtime/Session/RankResiduals.h"
#include "runtime/Session/TrainerState.h"
#include "runtime/Watch/RunFolder.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

static constexpr std::string_view kPrefix = "checkpoint-";

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

std::string checkpointFolder(const Run &run, int64_t step) {
  return fmt::format("{}/{}{}", run.outputFolder, kPrefix, step);
}

std::vector<std::string> checkpointsIn(const std::string &outputFolder) {
  std::vector<std::string> found;
  const auto files = listFolder(outputFolder);
  for (const fs::path &file :
       files.isOk() ? files.value() : std::vector<fs::path>())
    if (checkpointStep(file.string()) >= 0)
      found.push_back(file.string());
  std::ranges::sort(found, std::greater(), checkpointStep);
  return found;
}

/// What the thread needs, which the training changes meanwhile.
struct CheckpointWriter::Order {
  int64_t step = 0;
  int64_t bestStep = 0; ///< 0: none is kept for being the best
  std::string folder;   ///< its name in the end
  ordered_json trainer; ///< trainer_state.json without the history
  uint64_t metricsBytes = 0; ///< of metrics.jsonl, up to this step
  std::string gemmTable;

  /// Where it is made: everybody knows by the name that it is unfinished.
  std::string part() const { return folder + ".part.new"; }
};

static uint64_t sizeOf(const std::string &path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  return error ? 0 : bytes;
}

static std::string metricsFile(const Run &run) {
  return run.outputFolder + "/" + kMetricsFile;
}

CheckpointWriter::CheckpointWriter(const Run &run, ordered_json facts)
    : run(run), facts(std::move(facts)) {
  const auto files = listFolder(run.outputFolder);
  std::error_code ignored;
  for (const fs::path &file :
       files.isOk() ? files.value() : std::vector<fs::path>())
    if (file.filename().string().starts_with(kPrefix) &&
        file.stem().extension() == ".part")
      fs::remove_all(file, ignored);
}

/// What a checkpoint has of the device, in place where that is possible.
struct CheckpointWriter::Arenas {
  std::span<const uint8_t> trained, states, residuals;
  std::vector<uint8_t> copies[2];

  Status read(const Run &run, const GatheredArenas &gathered);
};

/// `image`, or where there is none the arena.
static StatusOr<std::span<const uint8_t>>
arenaBytes(const Run &run, qlora_arena_kind kind,
           std::span<const uint8_t> image, std::vector<uint8_t> &copy) {
  if (!image.empty())
    return image;
  const auto arena = run.module.arena(kind);
  if (run.device.hasHostArenas())
    return std::span<const uint8_t>(run.device.hostArena(*arena));
  copy.resize(run.module.arenaBytes(kind));
  QLORA_RETURN_IF_ERROR(run.device.read(*arena, 0, copy));
  return std::span<const uint8_t>(copy);
}

Status CheckpointWriter::Arenas::read(const Run &run,
                                      const GatheredArenas &gathered) {
  QLORA_ASSIGN_OR_RETURN(trained, arenaBytes(run, QLORA_ARENA_TRAINABLE,
                                             gathered.trained, copies[0]));
  QLORA_ASSIGN_OR_RETURN(states, arenaBytes(run, QLORA_ARENA_STATE,
                                            gathered.states, copies[1]));
  residuals = gathered.residuals;
  return Status::ok();
}

Status CheckpointWriter::save(int64_t step, const ordered_json &state,
                              const GatheredArenas &gathered,
                              const BestModel &best) {
  finish();
  Order order;
  order.step = step;
  order.bestStep =
      run.options.boolean("load_best_model_at_end") ? best.step() : 0;
  order.folder = checkpointFolder(run, step);
  order.trainer = trainerState(run, step, best);
  order.metricsBytes = sizeOf(metricsFile(run));
  order.gemmTable = run.device.gemmTable();
  last = step;
  isWhole = true;
  Arenas arenas;
  QLORA_RETURN_IF_ERROR(arenas.read(run, gathered));
  if (const Status status = copyOut(order, arenas, state); !status.isOk()) {
    std::error_code ignored;
    fs::remove_all(order.part(), ignored);
    report(status);
    return Status::ok();
  }
  pending = std::async(std::launch::async, [this, order = std::move(order)] {
    Status status = endExceptions("the checkpoint's thread",
                                  [&] { return writeOut(order); });
    std::error_code ignored;
    if (!status.isOk())
      fs::remove_all(order.part(), ignored);
    return status;
  });
  return Status::ok();
}

void CheckpointWriter::report(const Status &status) {
  if (status.isOk())
    return;
  run.metrics->warn(fmt::format("no checkpoint after step {}: {}", last,
                                status.message()));
  isWhole = false;
}

void CheckpointWriter::poll() {
  if (pending.valid() && pending.wait_for(std::chrono::seconds(0)) ==
                             std::future_status::ready)
    report(pending.get());
}

bool CheckpointWriter::finish() {
  if (pending.valid())
    report(pending.get());
  return isWhole;
}

Status CheckpointWriter::copyOut(const Order &order, const Arenas &arenas,
                                 const ordered_json &state) const {
  std::error_code error;
  fs::remove_all(order.part(), error);
  fs::create_directories(order.part(), error);
  if (error)
    return Status::error(StatusCode::kUnavailable, "cannot create '{}': {}",
                         order.part(), error.message());
  QLORA_RETURN_IF_ERROR(
      writeTrainedWeights(run.module, arenas.trained, order.part()));
  const auto put = [&](const char *name, std::vector<SafetensorsItem> items,
                       const std::map<std::string, std::string> &metadata)
      -> Status {
    QLORA_ASSIGN_OR_RETURN(AtomicFile file,
                           AtomicFile::create(order.part() + "/" + name));
    return writeSafetensors(std::move(file), std::move(items), metadata,
                            AtomicFile::Flush::kNo);
  };
  if (!arenas.residuals.empty())
    QLORA_RETURN_IF_ERROR(put(
        kResidualsFile,
        residualItems(run.module, run.group.size(), arenas.residuals), {}));
  return put(kStateFile,
             arenaItems(run.module, QLORA_ARENA_STATE, arenas.states),
             {{kStateKey, dumpJson(state)}});
}

/// On the thread beside the training. The manifest's writer flushes all files.
Status CheckpointWriter::writeOut(const Order &order) const {
  const std::string part = order.part();
  const auto put = [&](const char *name, const std::string &text) {
    return replaceWholeFile(part + "/" + name, text, AtomicFile::Flush::kNo);
  };
  QLORA_RETURN_IF_ERROR(writeTrainedConfig(run.module, run.options, part,
                                           AtomicFile::Flush::kNo));
  QLORA_RETURN_IF_ERROR(
      put(kSettingsFile, run.options.resolvedYaml()));
  if (!order.gemmTable.empty())
    QLORA_RETURN_IF_ERROR(put("gemm_table.json", order.gemmTable));
  // Where metrics.jsonl could not be written, a warning has said so.
  const auto metrics = readWholeFile(metricsFile(run));
  const std::string history =
      metrics.isOk() ? metrics.value().substr(0, order.metricsBytes) : "";
  QLORA_RETURN_IF_ERROR(put(kMetricsFile, history));
  QLORA_RETURN_IF_ERROR(
      put("trainer_state.json", withHistory(order.trainer, history)));
  ordered_json own = facts;
  own["step"] = order.step;
  QLORA_RETURN_IF_ERROR(writeManifest(part, own));
  QLORA_RETURN_IF_ERROR(putInPlace(order));
  prune(order);
  return Status::ok();
}

/// Into its place, or into that of one of before, which an earlier run has left.
static int takePlace(const std::string &from, const std::string &to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                RENAME_EXCHANGE) == 0)
    return 0;
  // There is none, or the file system cannot exchange two folders.
  std::error_code ignored;
  if (errno != ENOENT)
    fs::rename(to, from + "_old", ignored);
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

Status CheckpointWriter::putInPlace(const Order &order) const {
  if (const int error = takePlace(order.part(), order.folder))
    return Status::error(StatusCode::kUnavailable, "cannot write '{}': {}",
                         order.folder, std::strerror(error));
  flushFolder(run.outputFolder);
  std::error_code ignored;
  fs::remove_all(order.part(), ignored); // what was there before
  fs::remove_all(order.part() + "_old", ignored);
  return Status::ok();
}

/// Older ones, but for the best. One that goes is renamed first: a half of it
/// is never taken for a checkpoint. What cannot be removed stays.
void CheckpointWriter::prune(const Order &order) const {
  const int64_t limit = run.options.integer("save_total_limit");
  if (limit == 0)
    return;
  int64_t kept = 0;
  for (const std::string &folder : checkpointsIn(run.outputFolder)) {
    const int64_t step = checkpointStep(folder);
    const bool isLater = step > order.step; // of a run before this one
    if (isLater || kept++ < limit || step == order.bestStep)
      continue;
    std::error_code error;
    fs::rename(folder, folder + ".part.old", error);
    if (!error)
      fs::remove_all(folder + ".part.old", error);
  }
}

} // namespace qlora
