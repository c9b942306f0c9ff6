// SPDX-License-Identifier: MIT

// Finds, verifies and loads checkpoints.

#include "runtime/Checkpoint/Resume.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/Manifest.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Checkpoint/ArenaTensors.h"
#include "runtime/Checkpoint/CheckpointFolder.h"
#include "runtime/Checkpoint/CheckpointWriter.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

static bool isWord(const std::string &given) {
  return given == "true" || given == "latest";
}

static bool isGiven(const std::string &given) {
  return !given.empty() && given != "false";
}

/// Returns whether the path is `output` or a checkpoint in it.
static bool isInFolder(const std::string &given, const std::string &output) {
  std::error_code ignored;
  const fs::path path = absolutePath(given);
  // Compare names first: fs::equivalent() is false if the disk fails.
  return path.parent_path() == absolutePath(output) ||
         fs::equivalent(path, output, ignored) ||
         fs::equivalent(path.parent_path(), output, ignored);
}

bool resumesInto(const Options &options) {
  const std::string given = options.text("resume_from_checkpoint");
  const std::string output = options.text("output_dir");
  if (isWord(given))
    return !checkpointsIn(output).empty() || hasUnfinished(output);
  return isGiven(given) && isInFolder(given, output);
}

bool ResumePoint::isIn(const std::string &output) const {
  return isInFolder(folder, output);
}

/// Returns the path of the checkpoint's GEMM table, or an empty string.
static std::string gemmTableOf(const std::string &folder) {
  const std::string table = folder + "/gemm_table.json";
  std::error_code ignored;
  return fs::exists(table, ignored) ? table : "";
}

static StatusOr<ResumePoint> openPoint(const std::string &folder) {
  ResumePoint point;
  point.folder = folder;
  QLORA_ASSIGN_OR_RETURN(point.facts, verifyManifest(folder));
  QLORA_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::open(folder + "/" + kStateFile));
  const auto text = file.metadata().find(kStateKey);
  if (text != file.metadata().end())
    point.state = ordered_json::parse(text->second, nullptr,
                                      /*allow_exceptions=*/false);
  if (!point.state.is_object())
    return Status::dataLoss("'{}' has no training state", file.path());
  point.gemmTable = gemmTableOf(folder);
  return point;
}

static Status checkRun(const ResumePoint &point, const std::string &run) {
  const auto named = [](const std::string &id) {
    return id.empty() ? "a run without an id" : "run " + id.substr(0, 8);
  };
  const std::string own = runIdOf(point.facts);
  if (own == run)
    return Status::ok();
  return Status::invalid("'{}' belongs to {}, not to {}", point.folder,
                         named(own), named(run));
}

/// Returns the newest complete checkpoint of `output` with the folder's run id.
static StatusOr<std::optional<ResumePoint>>
newestPoint(const std::string &output, std::vector<std::string> &remarks) {
  Status unreadable;
  const auto folders = checkpointsIn(output, &unreadable);
  if (!unreadable.isOk())
    return unreadable.withContext(fmt::format("cannot read '{}'", output));
  const std::string run = runIdIn(output);
  for (const std::string &folder : folders) {
    auto point = openPoint(folder);
    Status status = point.status();
    if (status.isOk() && !run.empty())
      status = checkRun(*point, run);
    if (status.isOk())
      return std::optional(std::move(*point));
    remarks.push_back(fmt::format("checkpoint skipped: {}", status.message()));
  }
  if (folders.empty())
    return std::optional<ResumePoint>();
  // Do not start from scratch: that would rename these checkpoints, which may
  // be recoverable, to checkpoint-N.replaced, and later delete them.
  return Status::dataLoss(
      "no checkpoint in '{}' can be resumed ({}). Fix: resume another one with "
      "--resume-from-checkpoint PATH, or start from scratch with "
      "--overwrite-output-dir",
      output, fmt::join(remarks, "; "));
}

static StatusOr<std::optional<ResumePoint>>
givenPoint(const std::string &given, const std::string &output) {
  auto point = openPoint(given);
  if (point.status().code() == StatusCode::kNotFound)
    return Status::invalid(
        "--resume-from-checkpoint: '{}' is not a complete checkpoint: it has "
        "no {}, which is written last. Fix: name another checkpoint, or latest",
        given, kManifestFile);
  if (!point.isOk())
    return Status::error(point.status().code(),
                         "--resume-from-checkpoint: {}. Fix: name another "
                         "checkpoint, or latest",
                         point.status().message());
  if (point->isIn(output) && isReplaced(given))
    return Status::invalid(
        "--resume-from-checkpoint: '{}' was replaced by a later run into '{}'. "
        "Fix: choose another --output-dir",
        given, output);
  const std::string run = runIdIn(output);
  if (run.empty() || !point->isIn(output) || checkRun(*point, run).isOk())
    return std::optional(std::move(*point));
  return Status::invalid("--resume-from-checkpoint: {}, the run of '{}'. Fix: "
                         "choose another --output-dir",
                         checkRun(*point, run).message(), output);
}

static StatusOr<std::optional<ResumePoint>>
findPoint(const Options &options, std::vector<std::string> &remarks) {
  const std::string given = options.text("resume_from_checkpoint");
  if (!isGiven(given))
    return std::optional<ResumePoint>();
  const std::string output = options.text("output_dir");
  if (!isWord(given) &&
      (checkpointStep(given) >= 0 || checkpointsIn(given).empty()))
    return givenPoint(given, output);
  QLORA_ASSIGN_OR_RETURN(auto point,
                         newestPoint(isWord(given) ? output : given, remarks));
  if (!point)
    remarks.push_back(fmt::format(
        "no checkpoint in '{}': training starts from scratch", output));
  return point;
}

/// Returns the result of `find` on rank 0, or its error, on every rank.
template <typename Find>
static StatusOr<std::optional<ResumePoint>> findOnRankZero(RankGroup &group,
                                                           Find &&find) {
  std::string mine;
  Status error;
  std::optional<ResumePoint> point;
  if (group.rank() == 0) {
    StatusOr<std::optional<ResumePoint>> found = find();
    error = found.status();
    if (found.isOk())
      point = std::move(*found);
    mine = dumpExact(ordered_json{{"failed", !error.isOk()},
                                 {"folder", point ? point->folder : ""},
                                 {"facts", point ? point->facts : nullptr},
                                 {"state", point ? point->state : nullptr}});
  }
  QLORA_ASSIGN_OR_RETURN(const auto all, group.collectives().allGather(mine));
  QLORA_RETURN_IF_ERROR(error);
  const ordered_json told = parseExact<ordered_json>(all[0]);
  if (told["failed"] == true)
    return Status::error(StatusCode::kAborted,
                         "rank 0 cannot resume; see the error of rank 0");
  if (group.rank() != 0 && !told["facts"].is_null())
    point = ResumePoint{told["folder"], told["facts"], told["state"],
                        gemmTableOf(told["folder"])};
  return point;
}

StatusOr<std::optional<ResumePoint>>
findResumePoint(const Options &options, RankGroup &group,
                std::vector<std::string> &remarks) {
  return findOnRankZero(group, [&] { return findPoint(options, remarks); });
}

StatusOr<ResumePoint> findCheckpoint(const CheckpointName &name,
                                     RankGroup &group) {
  QLORA_ASSIGN_OR_RETURN(
      std::optional<ResumePoint> point,
      findOnRankZero(group, [&]() -> StatusOr<std::optional<ResumePoint>> {
        if (name.folder.empty())
          return Status::notFound(
              "there is no checkpoint to rewind to. Fix: --on-nonfinite skip, "
              "or a smaller --save-steps");
        QLORA_ASSIGN_OR_RETURN(ResumePoint found, openPoint(name.folder));
        QLORA_RETURN_IF_ERROR(checkRun(found, name.run));
        return std::optional(std::move(found));
      }));
  return std::move(*point);
}

//===----------------------------------------------------------------------===//
// Contents of a checkpoint
//===----------------------------------------------------------------------===//

namespace {
/// Reads a file's tensors in order.
struct TensorsOfFile {
  SafetensorsFile file;
  ArenaTensors tensors;
  TensorSource source = {};
  std::vector<SafetensorsItem> items = {};
  size_t number = 0; ///< index of the next tensor
  uint64_t given = 0; ///< bytes of that tensor already returned

  Status next(std::span<uint8_t> out) {
    while (!out.empty()) {
      const uint64_t rest = items[number].bytes.size() - given;
      const auto part = out.first(std::min<uint64_t>(out.size(), rest));
      QLORA_RETURN_IF_ERROR(source(number, given, part));
      given += part.size();
      out = out.subspan(part.size());
      if (given == items[number].bytes.size())
        ++number, given = 0;
    }
    return Status::ok();
  }
};
} // namespace

StatusOr<NextBytes> readTrained(const LoadedModule &module,
                                const Options &options,
                                const CheckpointName &checkpoint) {
  QLORA_ASSIGN_OR_RETURN(const ResumePoint point, openPoint(checkpoint.folder));
  QLORA_RETURN_IF_ERROR(checkRun(point, checkpoint.run));
  QLORA_ASSIGN_OR_RETURN(
      SafetensorsFile file,
      SafetensorsFile::open(point.folder + "/" + trainedFile(module)));
  const auto reader = std::make_shared<TensorsOfFile>(
      TensorsOfFile{std::move(file), finalTensors(module, options)});
  QLORA_ASSIGN_OR_RETURN(reader->source,
                         reader->tensors.sourceFrom(reader->file));
  reader->items = reader->tensors.items();
  return NextBytes(
      [reader](std::span<uint8_t> out) { return reader->next(out); });
}

bool hasResiduals(const std::string &checkpoint) {
  std::error_code ignored;
  return fs::exists(checkpoint + "/" + kResidualsFile, ignored);
}

static Status restoreFile(const std::string &path, const ArenaTensors &tensors,
                          Device &device, RankGroup &group) {
  if (group.rank() != 0)
    return tensors.restore({}, device, group);
  QLORA_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::open(path));
  QLORA_ASSIGN_OR_RETURN(const TensorSource source, tensors.sourceFrom(file));
  return tensors.restore(source, device, group);
}

Status restoreArenas(const ResumePoint &point, const LoadedModule &module,
                     Device &device, RankGroup &group) {
  for (const auto &[file, kind] :
       {std::pair(trainedFile(module), QLORA_ARENA_TRAINABLE),
        {kStateFile, QLORA_ARENA_STATE},
        {kResidualsFile, QLORA_ARENA_RESIDUAL}}) {
    const ArenaTensors tensors(module, kind, group.size());
    const bool isMissing =
        kind == QLORA_ARENA_RESIDUAL && !hasResiduals(point.folder);
    QLORA_RETURN_IF_ERROR(
        isMissing && group.rank() == 0
            ? tensors.restore(ArenaTensors::zeros(), device, group)
            : restoreFile(point.folder + "/" + file, tensors, device, group));
  }
  return fillRounded(module, device);
}

} // namespace qlora
