// SPDX-License-Identifier: MIT

// Finding, verifying and loading of checkpoints.

#include "runtime/Session/Resume.h"

#include <algorithm>
#include <filesystem>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/Manifest.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Session/Adapter.h"
#include "runtime/Session/ArenaImage.h"
#include "runtime/Session/Checkpoint.h"
#include "runtime/Session/RankResiduals.h"
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

bool resumesInto(const Options &options) {
  const std::string given = options.text("resume_from_checkpoint");
  const std::string output = options.text("output_dir");
  if (isWord(given))
    return !checkpointsIn(output).empty();
  std::error_code ignored;
  return isGiven(given) &&
         (fs::equivalent(given, output, ignored) ||
          fs::equivalent(fs::path(given).parent_path(), output, ignored));
}

/// As this machine sees it; or empty.
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
    return Status::error(StatusCode::kDataLoss, "'{}' has no state",
                         file.path());
  point.gemmTable = gemmTableOf(folder);
  return point;
}

/// The newest of `output` that is whole.
static StatusOr<std::optional<ResumePoint>>
newestPoint(const std::string &output, std::vector<std::string> &remarks) {
  const auto folders = checkpointsIn(output);
  for (const std::string &folder : folders) {
    auto point = openPoint(folder);
    if (point.isOk())
      return std::optional(std::move(*point));
    remarks.push_back(fmt::format("checkpoint passed over: {}",
                                  point.status().message()));
  }
  if (folders.empty())
    return std::optional<ResumePoint>();
  // To start anew would be to write over what may still be saved.
  return Status::error(StatusCode::kDataLoss,
                       "no checkpoint in '{}' can be resumed ({}); remove them "
                       "to start anew, or resume another one",
                       output, fmt::join(remarks, "; "));
}

/// Later ones would be what `latest` means the next time.
static void remarkLater(const ResumePoint &point, const std::string &output,
                        std::vector<std::string> &remarks) {
  const auto folders = checkpointsIn(output);
  if (!folders.empty() && checkpointStep(folders.front()) > point.step())
    remarks.push_back(fmt::format(
        "'{}' is later than the checkpoint that is resumed, and 'latest' would "
        "mean it; remove it where this run is to replace it",
        folders.front()));
}

static StatusOr<std::optional<ResumePoint>>
findPoint(const Options &options, std::vector<std::string> &remarks) {
  const std::string given = options.text("resume_from_checkpoint");
  if (!isGiven(given))
    return std::optional<ResumePoint>();
  const std::string output = options.text("output_dir");
  if (isWord(given)) {
    QLORA_ASSIGN_OR_RETURN(auto point, newestPoint(output, remarks));
    if (!point)
      remarks.push_back(fmt::format(
          "no checkpoint in '{}': training starts from the beginning", output));
    return point;
  }
  if (checkpointStep(given) < 0 && !checkpointsIn(given).empty())
    return newestPoint(given, remarks);
  auto point = openPoint(given);
  if (point.status().code() == StatusCode::kNotFound)
    return Status::invalid("--resume-from-checkpoint: '{}' is no checkpoint: "
                           "it has no {}",
                           given, kManifestFile);
  QLORA_RETURN_IF_ERROR(point.status().withContext("--resume-from-checkpoint"));
  remarkLater(*point, output, remarks);
  return std::optional(std::move(*point));
}

/// What rank 0's `find` finds, or its error, on every rank.
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
                         "rank 0 cannot resume; its own message says why");
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

StatusOr<std::optional<ResumePoint>>
findNewestPoint(const std::string &output, RankGroup &group,
                std::vector<std::string> &remarks) {
  return findOnRankZero(group, [&] { return newestPoint(output, remarks); });
}

/// What an arena, or its image, has in one of the checkpoint's files, by the
/// parameters' names.
static StatusOr<std::vector<uint8_t>>
readArena(const LoadedModule &module, const std::string &checkpoint,
          const char *name, qlora_arena_kind kind) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::open(checkpoint + "/" + name));
  std::vector<uint8_t> arena(ArenaImage(module, kind).bytes());
  for (const SafetensorsItem &item : arenaItems(module, kind, arena)) {
    QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *tensor,
                           file.get(item.name));
    if (tensor->dtype != item.dtype || tensor->shape != item.shape)
      return Status::invalid("'{}': tensor '{}' is {} {}, and train.so has {} "
                             "{}; resume it with the program that it is of",
                             file.path(), tensor->name,
                             safetensorsDtypeName(tensor->dtype),
                             formatShape(tensor->shape),
                             safetensorsDtypeName(item.dtype),
                             formatShape(item.shape));
    const auto offset = static_cast<size_t>(item.bytes.data() - arena.data());
    QLORA_RETURN_IF_ERROR(file.read(
        *tensor, 0, std::span(arena).subspan(offset, item.bytes.size())));
  }
  return arena;
}

StatusOr<std::vector<uint8_t>> readTrained(const LoadedModule &module,
                                           const std::string &checkpoint) {
  return readArena(module, checkpoint, trainedFile(module),
                   QLORA_ARENA_TRAINABLE);
}

Status restoreArenas(const ResumePoint &point, const LoadedModule &module,
                     Device &device, RankGroup &group) {
  const std::pair<const char *, qlora_arena_kind> sources[] = {
      {trainedFile(module), QLORA_ARENA_TRAINABLE},
      {kStateFile, QLORA_ARENA_STATE}};
  for (const auto &[file, kind] : sources) {
    std::vector<uint8_t> values;
    if (group.rank() == 0) {
      QLORA_ASSIGN_OR_RETURN(values,
                             readArena(module, point.folder, file, kind));
    }
    QLORA_RETURN_IF_ERROR(
        ArenaImage(module, kind).share(values, device, group));
  }
  QLORA_RETURN_IF_ERROR(restoreResiduals(point.folder, module, device, group));
  return fillRounded(module, device);
}

} // namespace qlora
