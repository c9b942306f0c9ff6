// SPDX-License-Identifier: MIT

// Maps a cached base, or allocates a new base and caches it once it is filled.

#include "runtime/Weights/QuantizedBase.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/Base/UserFiles.h"

namespace qlora {

/// Returns the cache folder, or an empty string if the user has none.
static std::string folderOf(const QuantizedBaseCacheRequest &request) {
  if (request.place != QuantizedBaseCacheRequest::kUserCache)
    return request.place;
  const std::string cache = userCacheFolder();
  return cache.empty() ? "" : cache + "/bases";
}

void QuantizedBase::remark(const Status &status) {
  if (!status.isOk())
    remarks.push_back(
        fmt::format("the quantized base is not cached for the next run: {}",
                    status.message()));
}

FileDescriptor QuantizedBase::find(const LoadedModule &module,
                                   const ModelFiles &model,
                                   const QuantizedBaseCacheRequest &request,
                                   uint32_t piece) {
  if (request.place == QuantizedBaseCacheRequest::kNone ||
      !quantizesBase(module))
    return FileDescriptor();
  const std::string folder = folderOf(request);
  if (folder.empty()) {
    remark(Status::unavailable(
        "neither XDG_CACHE_HOME nor HOME is set; add --base-cache DIR"));
    return FileDescriptor();
  }
  if (Status settled = checkSettled(model); !settled.isOk()) {
    remark(settled);
    return FileDescriptor();
  }
  auto name = baseKey(module, model, piece);
  if (!name.isOk()) {
    remark(name.status());
    return FileDescriptor();
  }
  key = *name;
  cache.emplace(folder, request.limit);
  auto file = cache->open(key, module.arenaBytes(QLORA_ARENA_FROZEN));
  if (!file.isOk()) {
    remarks.push_back(fmt::format("{}; the base is quantized again",
                                  file.status().message()));
    return FileDescriptor();
  }
  if (file->isOpen())
    mapped = cache->fileOf(key);
  return std::move(file).value();
}

namespace {
/// A rank's message to all ranks: its machine, and whether its shard is cached.
struct PieceState {
  int32_t machine, hasFile;
};
} // namespace

/// Returns whether rank `rank` stores its shard in the cache of its machine:
/// the shard is not cached yet, and no lower rank of the same machine and stage
/// has the same shard. A pipeline stage has `ofStage` ranks.
static bool leavesPiece(std::span<const PieceState> states, size_t rank,
                        uint32_t holders, size_t ofStage) {
  const PieceState &own = states[rank];
  for (size_t other = rank / ofStage * ofStage + rank % holders; other < rank;
       other += holders)
    if (states[other].machine == own.machine)
      return false;
  return own.hasFile == 0;
}

/// Returns the states of all ranks of the job, in rank order.
static StatusOr<std::vector<PieceState>>
gatherStates(RankGroup &group, uint32_t holders, bool hasFile) {
  const PieceState own = {group.firstOfMachine(), hasFile};
  QLORA_ASSIGN_OR_RETURN(
      const auto told, group.collectives().allGatherValues(std::span(&own, 1)));
  std::vector<PieceState> states;
  for (const std::vector<PieceState> &each : told)
    states.insert(states.end(), each.begin(), each.end());
  if (states.size() != told.size() || states.size() % holders != 0)
    return Status::error(StatusCode::kInternal,
                         "{} of {} ranks sent the state of their piece of {}",
                         states.size(), told.size(), holders);
  return states;
}

/// Returns whether all ranks that hold the base together have found their
/// shards in the cache. A shard that was found is not written again.
StatusOr<bool> QuantizedBase::agreeOnPieces(RankGroup &group, uint32_t holders,
                                            bool hasFile) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<PieceState> states,
                         gatherStates(group, holders, hasFile));
  const auto rank = static_cast<size_t>(group.rank());
  const auto together =
      std::span(states).subspan(rank / holders * holders, holders);
  const auto found = std::ranges::count_if(
      together, [](const PieceState &state) { return state.hasFile != 0; });
  const auto ofStage = static_cast<size_t>(group.mesh().stride(QLORA_GROUP_PP));
  writers = 0;
  for (size_t other = 0; other < states.size(); ++other)
    writers += states[other].machine == group.firstOfMachine() &&
               leavesPiece(states, other, holders, ofStage);
  if (!leavesPiece(states, rank, holders, ofStage))
    key.clear();
  if (found > 0 && found < holders && remarks.empty())
    remarks.push_back(fmt::format("only {} of {} pieces of the quantized base "
                                  "are cached; all are quantized again",
                                  found, holders));
  return found == holders;
}

/// Collects the remarks of all ranks, for the rank that prints them.
Status QuantizedBase::shareRemarks(RankGroup &group) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         group.collectives().allGather(
                             fmt::format("{}", fmt::join(remarks, "\n"))));
  remarks.clear();
  for (const std::string &remark : all)
    if (!remark.empty() && std::ranges::find(remarks, remark) == remarks.end())
      remarks.push_back(remark);
  return Status::ok();
}

Status QuantizedBase::openPiece(const LoadedModule &module,
                                const ModelFiles &model, RankGroup &group,
                                const QuantizedBaseCacheRequest &request) {
  const uint32_t holders = holdersOf(module);
  const uint64_t bytes = module.arenaBytes(QLORA_ARENA_FROZEN);
  const FileDescriptor file = find(
      module, model, request, static_cast<uint32_t>(group.rank()) % holders);
  QLORA_RETURN_IF_ERROR(shareRemarks(group));
  QLORA_ASSIGN_OR_RETURN(const bool areAllThere,
                         agreeOnPieces(group, holders, file.isOpen()));
  if (!areAllThere)
    mapped.clear();
  QLORA_ASSIGN_OR_RETURN(arena, areAllThere
                                    ? FrozenArena::filled(file.get(), bytes)
                                    : FrozenArena::anonymous(bytes));
  return Status::ok();
}

StatusOr<QuantizedBase>
QuantizedBase::open(const LoadedModule &module, const ModelFiles &model,
                    RankGroup &group,
                    const QuantizedBaseCacheRequest &request) {
  QuantizedBase base;
  if (holdersOf(module) > 1) {
    QLORA_RETURN_IF_ERROR(base.openPiece(module, model, group, request));
    return base;
  }
  QLORA_ASSIGN_OR_RETURN(base.arena,
                         group.shareFrozenArena(
                             module.arenaBytes(QLORA_ARENA_FROZEN),
                             [&] { return base.find(module, model, request); },
                             base.part));
  if (module.stages() == 1)
    return base;
  // Each pipeline stage has its own base. One rank per machine stores it.
  QLORA_RETURN_IF_ERROR(base.shareRemarks(group));
  QLORA_RETURN_IF_ERROR(
      base.agreeOnPieces(group, /*holders=*/1, base.isFilled()).status());
  return base;
}

Status QuantizedBase::seal(const ModelFiles &model) {
  QLORA_RETURN_IF_ERROR(arena.protect());
  const bool isMadeHere = !isFilled();
  isSealed = true;
  if (!isMadeHere || key.empty())
    return Status::ok();
  if (Status unchanged = checkUnchanged(model); !unchanged.isOk()) {
    remark(unchanged);
    return Status::ok();
  }
  auto started = cache->write(key, arena.bytes(), writers);
  remark(started.status());
  if (started.isOk())
    writer = std::move(started).value();
  return Status::ok();
}

void QuantizedBase::finish() {
  if (writer)
    remark(writer->finish());
  writer.reset();
}

std::vector<std::string> QuantizedBase::takeRemarks() {
  return std::exchange(remarks, {});
}

} // namespace qlora
