// SPDX-License-Identifier: MIT

// Meets the other ranks, measures, and writes the file.

#include "runtime/Predict/CalibrationRun.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Exceptions.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Predict/Calibrate.h"
#include "runtime/Predict/LinkRates.h"
#include "runtime/Predict/PredictionText.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// Generous time limit: there may be more threads than CPUs, or other programs.
/// A lost rank is noticed at once.
static constexpr std::chrono::minutes kTimeout(10);

namespace {
/// State of a rank before it meets the others.
struct Prepared {
  std::optional<DeviceProfile> profile; ///< the given profile
  std::optional<AtomicFile> file;       ///< the file to write; only on rank 0
};
} // namespace

static StatusOr<DeviceProfile> readGiven(const std::string &path,
                                         const RankEnvironment &env) {
  if (env.worldSize == 1)
    return Status::invalid(
        "--calibrate with --device-profile measures only links between ranks, "
        "but there is one rank. Fix: --gpus 2 or more");
  QLORA_ASSIGN_OR_RETURN(DeviceProfile given, readDeviceProfile(path));
  if (given.gpu)
    return Status::invalid(
        "--calibrate measures CPU ranks, but '{}' describes the GPU {}", path,
        given.cpu);
  return given;
}

static StatusOr<Prepared> prepare(const CalibrationRequest &request,
                                  const RankEnvironment &env) {
  if (env.worldSize % env.localWorldSize != 0)
    return Status::invalid("--calibrate needs the same number of ranks on "
                           "every machine, but of {} ranks this one has {}",
                           env.worldSize, env.localWorldSize);
  Prepared prepared;
  if (!request.profile.empty()) {
    QLORA_ASSIGN_OR_RETURN(prepared.profile, readGiven(request.profile, env));
  }
  if (env.isMain()) {
    QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(request.path));
    prepared.file.emplace(std::move(file));
  }
  return prepared;
}

/// Replaces known rates by measured ones.
static void replaceLinks(RankLinks &known, const RankLinks &measured) {
  if (measured.window)
    known.window = measured.window;
  if (measured.sockets)
    known.sockets = measured.sockets;
  if (measured.network) {
    known.network = measured.network;
    known.ranksPerNode = measured.ranksPerNode;
  }
}

/// Checks that group TP, of LOCAL_WORLD_SIZE ranks, is this machine's ranks.
static Status checkMachine(RankGroup &group) {
  QLORA_ASSIGN_OR_RETURN(const LocalRanks here,
                         LocalRanks::find(group.collectives()));
  const int64_t said = group.mesh()[QLORA_GROUP_TP];
  if (here.size() == said)
    return Status::ok();
  return Status::invalid(
      "the launcher says that {0} ranks are on this machine, but there are "
      "{1}. Fix: set LOCAL_WORLD_SIZE to {1} on every machine",
      said, here.size());
}

static StatusOr<std::string> measureAndWrite(const CalibrationRequest &request,
                                             Prepared prepared,
                                             RankGroup &group) {
  QLORA_RETURN_IF_ERROR(checkMachine(group));
  DeviceProfile device;
  if (prepared.profile) {
    device = std::move(*prepared.profile);
  } else {
    QLORA_ASSIGN_OR_RETURN(device, measureProfile(request.threads));
  }
  QLORA_ASSIGN_OR_RETURN(const RankLinks links, measureLinks(group));
  replaceLinks(device.links, links);
  if (!prepared.file)
    return std::string();
  const std::string text = dumpJson(profileJson(device), 2) + "\n";
  QLORA_RETURN_IF_ERROR(prepared.file->write(text));
  QLORA_RETURN_IF_ERROR(prepared.file->commit());
  return text;
}

StatusOr<std::string> runCalibration(const CalibrationRequest &request,
                                     const RankEnvironment &env,
                                     FileDescriptor listening) {
  auto prepared = prepare(request, env);
  QLORA_ASSIGN_OR_RETURN(
      RankGroup group,
      RankGroup::join(env, std::move(listening), kTimeout,
                      GroupSizes({.tp = uint32_t(env.localWorldSize)}),
                      prepared.status()));
  // Catch exceptions here, since group.end() must report them to all ranks.
  auto text = endExceptions("calibration", [&] {
    return measureAndWrite(request, std::move(*prepared), group);
  });
  return text.isOk() ? text : group.end(text.status());
}

} // namespace qlora
