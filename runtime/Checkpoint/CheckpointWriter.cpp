// SPDX-License-Identifier: MIT

// Writes checkpoints.

#include "runtime/Checkpoint/CheckpointWriter.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "runtime/Base/Exceptions.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/Manifest.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Checkpoint/ArenaTensors.h"
#include "runtime/Checkpoint/CheckpointFolder.h"
#include "runtime/Checkpoint/TrainerState.h"
#include "runtime/Checkpoint/UntrainedTensors.h"
#include "runtime/Watch/RunFolder.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Inputs of the background thread, copied because training changes them.
struct CheckpointWriter::Order {
  int64_t step = 0;
  int64_t bestStep = 0; ///< step of the best model; 0: none
  std::string folder;   ///< final name of the checkpoint
  ordered_json trainer; ///< trainer_state.json without the history
  uint64_t metricsBytes = 0; ///< bytes of metrics.jsonl, up to this step
  std::string gemmTable;

  std::string part() const { return unfinishedCheckpoint(folder); }
};

static uint64_t sizeOf(const std::string &path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  return error ? 0 : bytes;
}

static std::string metricsFile(const Run &run) {
  return run.outputFolder + "/" + kMetricsFile;
}

CheckpointWriter::CheckpointWriter(const Run &run, ordered_json facts,
                                   const ResumePoint *resumed)
    : run(run), facts(std::move(facts)) {
  if (resumed)
    whole = {resumed->folder, runIdOf(resumed->facts)};
  removeUnfinished(run.outputFolder);
}

namespace {
/// A checkpoint file with the tensors of an arena.
struct TensorsFile {
  const char *name;
  ArenaTensors tensors;
};
} // namespace

/// Returns the files in the order in which ranks send their tensors.
static std::vector<TensorsFile> tensorsFiles(const Run &run) {
  const auto tensors = [&](qlora_arena_kind kind) {
    return ArenaTensors(run.module, kind, run.group.size());
  };
  std::vector<TensorsFile> files = {
      {trainedFile(run.module), tensors(QLORA_ARENA_TRAINABLE)},
      {kStateFile, tensors(QLORA_ARENA_STATE)}};
  if (run.module.arena(QLORA_ARENA_RESIDUAL))
    files.push_back({kResidualsFile, tensors(QLORA_ARENA_RESIDUAL)});
  return files;
}

Status CheckpointWriter::send(const Run &run) {
  for (const TensorsFile &file : tensorsFiles(run))
    QLORA_RETURN_IF_ERROR(
        ArenaReader(file.tensors, run.device, run.group).finish());
  return Status::ok();
}

Status CheckpointWriter::save(int64_t step, const ordered_json &state,
                              const BestModel &best) {
  finish();
  Order order;
  order.step = step;
  order.bestStep =
      run.options.boolean("load_best_model_at_end") ? best.step() : 0;
  order.folder = checkpointFolder(run.outputFolder, step);
  order.trainer = trainerState(run, step, best);
  order.metricsBytes = sizeOf(metricsFile(run));
  order.gemmTable = run.device.gemmTable();
  last = step;
  isWhole = true;
  Status written;
  QLORA_RETURN_IF_ERROR(copyOut(order, state, written));
  if (!written.isOk()) {
    std::error_code ignored;
    fs::remove_all(order.part(), ignored);
    report(written);
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
  isWhole = status.isOk();
  if (isWhole)
    whole = {checkpointFolder(run.outputFolder, last), runIdOf(facts)};
  else
    run.metrics->warn(fmt::format("no checkpoint after step {}: {}", last,
                                  status.message()));
}

const CheckpointName &CheckpointWriter::newest() {
  finish();
  return whole;
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

static Status makeFolder(const std::string &folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (!error)
    return Status::ok();
  return Status::unavailable("cannot create '{}': {}", folder, error.message());
}

/// `untrained`: tensors to add to the file.
static Status writeTensors(const std::string &path, const ArenaTensors &tensors,
                           const std::map<std::string, std::string> &metadata,
                           const UntrainedTensors &untrained,
                           ArenaReader &reader) {
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  std::vector<SafetensorsItem> items = tensors.items();
  untrained.addTo(items);
  return writeSafetensors(
      std::move(file), items, metadata,
      untrained.joined(
          items, [&](std::span<uint8_t> out) { return reader.read(out); }),
      AtomicFile::Flush::kNo);
}

/// Gathers all tensors and writes their files. Returns errors of devices and
/// ranks. `written` receives errors of files, which do not stop the gathering.
Status CheckpointWriter::copyOut(const Order &order, const ordered_json &state,
                                 Status &written) const {
  const std::map<std::string, std::map<std::string, std::string>> metadata = {
      {trainedFile(run.module), adapterMetadata()},
      {kStateFile, {{kStateKey, dumpJson(state)}}},
      {kResidualsFile, {}}};
  auto untrained = UntrainedTensors::find(run.module, run.options);
  written = untrained.isOk() ? makeFolder(order.part()) : untrained.status();
  for (const auto &[name, tensors] : tensorsFiles(run)) {
    ArenaReader reader(tensors, run.device, run.group);
    const bool isModel = name == trainedFile(run.module);
    if (written.isOk())
      written =
          writeTensors(order.part() + "/" + name, tensors, metadata.at(name),
                       isModel ? *untrained : UntrainedTensors(), reader);
    QLORA_RETURN_IF_ERROR(reader.finish());
  }
  return Status::ok();
}

/// Runs on the background thread. writeManifest() flushes all files.
Status CheckpointWriter::writeOut(const Order &order) const {
  const std::string part = order.part();
  const auto put = [&](const char *name, const std::string &text) {
    return replaceWholeFile(part + "/" + name, text, AtomicFile::Flush::kNo);
  };
  QLORA_RETURN_IF_ERROR(writeTrainedConfig(run.module, run.options, part,
                                           AtomicFile::Flush::kNo));
  QLORA_RETURN_IF_ERROR(put(kSettingsFile, run.options.resolvedYaml()));
  if (!order.gemmTable.empty())
    QLORA_RETURN_IF_ERROR(put("gemm_table.json", order.gemmTable));
  // If metrics.jsonl could not be written, a warning was already given.
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
  removeOlderCheckpoints(run.outputFolder,
                         run.options.integer("save_total_limit"),
                         order.bestStep);
  return Status::ok();
}

/// Renames the checkpoint to its final name. The name is free, because
/// takeFolder() renamed all checkpoints that this run replaces.
Status CheckpointWriter::putInPlace(const Order &order) const {
  if (std::rename(order.part().c_str(), order.folder.c_str()) != 0)
    return Status::unavailable("cannot write '{}': {}", order.folder,
                               std::strerror(errno));
  flushFolder(run.outputFolder);
  return Status::ok();
}

} // namespace qlora
