// SPDX-License-Identifier: MIT

// What a base is kept under; mapping, filling and keeping it.

#include "runtime/Weights/FrozenBase.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Kernels/Cpu/QuantizeStored.h"
#include "runtime/Weights/FileWeight.h"

namespace qlora {

//===----------------------------------------------------------------------===//
// The key
//===----------------------------------------------------------------------===//

/// Raised when the same weight of the same file gets other bytes, and no
/// sample shows it.
constexpr const char *kBaseVersion = "qlora base 1";

static bool isInFrozenArena(const LoadedModule &module,
                            const qlora_parameter &parameter) {
  return module.arenas()[parameter.arena].kind == QLORA_ARENA_FROZEN;
}

bool quantizesBase(const LoadedModule &module) {
  const auto parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const qlora_parameter &parameter) {
                       return isInFrozenArena(module, parameter) &&
                              (parameter.quantization ==
                                   QLORA_QUANTIZATION_ON_LOAD ||
                               parameter.quantization ==
                                   QLORA_QUANTIZATION_TURNED);
                     });
}

/// Numbers of many magnitudes, quantised by every quantiser: what a change of the quantiser
/// changes, so that nobody has to remember the version.
static std::string quantizedSample() {
  // Two runs of scales, and a partial block at the end.
  constexpr int64_t kElements = 64 * 300 + 7;
  std::vector<float> elements(kElements);
  for (int64_t i = 0; i < kElements; ++i)
    elements[static_cast<size_t>(i)] =
        std::ldexp(static_cast<float>(i * 40503 % 65521 - 32760),
                   static_cast<int>(i / 64 % 24) - 32);
  std::string bytes;
  for (const StoredFormat &format : kStoredFormats) {
    if (!isQuantizer(format.dtype))
      continue;
    const auto layout = StoredLayout::of(
        format.dtype, kElements, 64,
        format.codedScales != CodedScales::kNever);
    const size_t begin = bytes.size();
    bytes.resize(begin + static_cast<size_t>(layout.bytes));
    quantizeStored(layout, elements.data(),
                   reinterpret_cast<uint8_t *>(bytes.data() + begin));
  }
  return bytes;
}

static std::string layoutText(const qlora_parameter &parameter) {
  const std::span<const int64_t> shape(parameter.shape, parameter.rank);
  return fmt::format("{} {} {} {} {} {} {} {} {}", formatShape(shape),
                     parameter.file_dtype, parameter.dtype,
                     parameter.quantization, parameter.format, parameter.block,
                     parameter.double_quant, parameter.offset, parameter.bytes);
}

/// Of a base that is whole nothing: its key is what it was before there were
/// pieces.
static void addPiece(const LoadedModule &module, uint32_t piece,
                     ContentHash &hash) {
  const uint32_t shards = module.table().shards;
  if (shards <= 1)
    return;
  hash.add(fmt::format("piece {} of {}", piece, shards));
  for (const qlora_parameter &parameter : module.parameters())
    if (isInFrozenArena(module, parameter))
      hash.add(fmt::format("{}", parameter.piece));
}

static void addFile(const std::string &name, const SafetensorsFile &file,
                    ContentHash &hash) {
  const FileIdentity &identity = file.identity();
  hash.add(name);
  hash.add(fmt::format("{} {} {} {} {}", identity.bytes, identity.inode,
                       identity.modified, identity.changed,
                       file.tensors().size()));
  for (const SafetensorsTensor &tensor : file.tensors()) {
    hash.add(tensor.name);
    hash.add(fmt::format("{} {} {} {}", safetensorsDtypeName(tensor.dtype),
                         formatShape(tensor.shape), tensor.begin, tensor.end));
  }
}

StatusOr<std::string> baseKey(const LoadedModule &module,
                              const ModelFiles &model, uint32_t piece) {
  ContentHash hash;
  hash.add(kBaseVersion);
  hash.add(quantizedSample());
  hash.add(model.quantization());
  hash.add(fmt::format("{}", module.arenaBytes(QLORA_ARENA_FROZEN)));
  for (const qlora_parameter &parameter : module.parameters()) {
    if (!isInFrozenArena(module, parameter))
      continue;
    hash.add(parameter.name);
    for (const char *name : fileNamesOf(parameter))
      hash.add(name);
    hash.add(layoutText(parameter));
  }
  addPiece(module, piece, hash);
  for (const auto &[name, file] : model.all())
    addFile(name, file, hash);
  for (const std::string &tensor : model.tensorNames()) {
    QLORA_ASSIGN_OR_RETURN(std::string file, model.fileOf(tensor));
    hash.add(tensor);
    hash.add(file);
  }
  return hash.finish();
}

Status checkSettled(const ModelFiles &model) {
  for (const auto &[name, file] : model.all())
    if (!file.identity().isSettled())
      return Status::error(StatusCode::kUnavailable,
                           "'{}' was written less than two seconds ago by "
                           "this machine's clock, and might still be",
                           file.path());
  return Status::ok();
}

Status checkUnchanged(const ModelFiles &model) {
  for (const auto &[name, file] : model.all()) {
    QLORA_ASSIGN_OR_RETURN(FileIdentity now, FileIdentity::at(file.path()));
    if (now != file.identity())
      return Status::error(StatusCode::kUnavailable,
                           "'{}' was changed while it was read", file.path());
  }
  return Status::ok();
}

//===----------------------------------------------------------------------===//
// The cache and the shared memory, as one
//===----------------------------------------------------------------------===//

/// Empty: the user has no cache folder.
static std::string folderOf(const BaseCacheRequest &request) {
  if (request.place != BaseCacheRequest::kUserCache)
    return request.place;
  const std::string cache = userCacheFolder();
  return cache.empty() ? "" : cache + "/bases";
}

void FrozenBase::remark(const Status &status) {
  if (!status.isOk())
    remarks.push_back(
        fmt::format("the quantised base is not kept for the next start: {}",
                    status.message()));
}

FileDescriptor FrozenBase::find(const LoadedModule &module,
                                const ModelFiles &model,
                                const BaseCacheRequest &request,
                                uint32_t piece) {
  if (request.place == BaseCacheRequest::kNone || !quantizesBase(module))
    return FileDescriptor();
  const std::string folder = folderOf(request);
  if (folder.empty()) {
    remark(Status::error(StatusCode::kUnavailable,
                         "neither XDG_CACHE_HOME nor HOME is set; "
                         "--base-cache DIR says where"));
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
    remarks.push_back(
        fmt::format("{}; the base is made again", file.status().message()));
    return FileDescriptor();
  }
  if (file->isOpen())
    mapped = cache->fileOf(key);
  return std::move(file).value();
}

namespace {
/// What a rank tells the others of its piece.
struct PieceState {
  int32_t machine, hasFile;
};
} // namespace

/// Whether it is this rank that leaves its piece in the cache of its machine,
/// where others may have the same one.
static bool leavesPiece(std::span<const PieceState> states, size_t rank,
                        uint32_t shards) {
  const PieceState &own = states[rank];
  for (size_t other = rank % shards; other < rank; other += shards)
    if (states[other].machine == own.machine)
      return false;
  return own.hasFile == 0;
}

/// Of all ranks of the job, in their order.
static StatusOr<std::vector<PieceState>>
gatherStates(RankGroup &group, uint32_t shards, bool hasFile) {
  const PieceState own = {group.firstOfMachine(), hasFile};
  QLORA_ASSIGN_OR_RETURN(
      const auto told, group.collectives().allGatherValues(std::span(&own, 1)));
  std::vector<PieceState> states;
  for (const std::vector<PieceState> &each : told)
    states.insert(states.end(), each.begin(), each.end());
  if (states.size() != told.size() || states.size() % shards != 0)
    return Status::error(StatusCode::kInternal,
                         "{} of {} ranks have said what of {} pieces they have",
                         states.size(), told.size(), shards);
  return states;
}

/// Whether all who hold the base together have found their pieces. A rank that
/// has found its own leaves it as it is.
StatusOr<bool> FrozenBase::agreeOnPieces(RankGroup &group, uint32_t shards,
                                         bool hasFile) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<PieceState> states,
                         gatherStates(group, shards, hasFile));
  const auto rank = static_cast<size_t>(group.rank());
  const auto together =
      std::span(states).subspan(rank / shards * shards, shards);
  const auto found = std::ranges::count_if(
      together, [](const PieceState &state) { return state.hasFile != 0; });
  writers = 0;
  for (size_t other = 0; other < states.size(); ++other)
    writers += states[other].machine == group.firstOfMachine() &&
               leavesPiece(states, other, shards);
  if (!leavesPiece(states, rank, shards))
    key.clear();
  if (found > 0 && found < shards && remarks.empty())
    remarks.push_back(fmt::format("{} of the {} pieces of the quantised base "
                                  "are kept; all are made again",
                                  found, shards));
  return found == shards;
}

/// What is wrong with the piece of any rank, for the one that speaks.
Status FrozenBase::shareRemarks(RankGroup &group) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         group.collectives().allGather(
                             fmt::format("{}", fmt::join(remarks, "\n"))));
  remarks.clear();
  for (const std::string &remark : all)
    if (!remark.empty() && std::ranges::find(remarks, remark) == remarks.end())
      remarks.push_back(remark);
  return Status::ok();
}

Status FrozenBase::openPiece(const LoadedModule &module,
                             const ModelFiles &model, RankGroup &group,
                             const BaseCacheRequest &request) {
  const uint32_t shards = module.table().shards;
  const uint64_t bytes = module.arenaBytes(QLORA_ARENA_FROZEN);
  const FileDescriptor file = find(
      module, model, request, static_cast<uint32_t>(group.rank()) % shards);
  QLORA_RETURN_IF_ERROR(shareRemarks(group));
  QLORA_ASSIGN_OR_RETURN(const bool areAllThere,
                         agreeOnPieces(group, shards, file.isOpen()));
  if (!areAllThere)
    mapped.clear();
  QLORA_ASSIGN_OR_RETURN(arena, areAllThere
                                    ? FrozenArena::filled(file.get(), bytes)
                                    : FrozenArena::anonymous(bytes));
  return Status::ok();
}

StatusOr<FrozenBase> FrozenBase::open(const LoadedModule &module,
                                      const ModelFiles &model, RankGroup &group,
                                      const BaseCacheRequest &request) {
  FrozenBase base;
  if (module.table().shards > 1) {
    QLORA_RETURN_IF_ERROR(base.openPiece(module, model, group, request));
    return base;
  }
  QLORA_ASSIGN_OR_RETURN(base.arena,
                         group.shareFrozenArena(
                             module.arenaBytes(QLORA_ARENA_FROZEN),
                             [&] { return base.find(module, model, request); },
                             base.part));
  return base;
}

Status FrozenBase::seal(const ModelFiles &model) {
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

void FrozenBase::finish() {
  if (writer)
    remark(writer->finish());
  writer.reset();
}

std::vector<std::string> FrozenBase::takeRemarks() {
  return std::exchange(remarks, {});
}

} // namespace qlora
