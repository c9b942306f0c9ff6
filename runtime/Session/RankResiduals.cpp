// SPDX-License-Identifier: MIT

// Residuals of all ranks, by tensors.

#include "runtime/Session/RankResiduals.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "runtime/Weights/Parameters.h"

namespace qlora {

/// What ranks are sent at a time.
static constexpr uint64_t kWindow = uint64_t{4} << 20;

static std::string_view textOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

static Status isNotOfThisSize(size_t rank, uint64_t found, uint64_t wanted) {
  return Status::error(StatusCode::kInternal,
                       "rank {} has {} bytes of residuals in place of {}", rank,
                       found, wanted);
}

static uint64_t trainedBytesOf(const LoadedModule &module) {
  uint64_t bytes = 0;
  for (const qlora_parameter *parameter : trainedParameters(module))
    bytes += parameter->bytes;
  return bytes;
}

/// Calls `visit` with each tensor and what an image of `ranks` ranks has of it: of
/// an empty image, as those of other ranks than 0 are, nothing.
template <typename Visit>
static Status forEachTensor(const LoadedModule &module, uint64_t ranks,
                            std::span<uint8_t> image, Visit visit) {
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    const uint64_t bytes = image.empty() ? 0 : parameter->bytes * ranks;
    QLORA_RETURN_IF_ERROR(visit(*parameter, image.first(bytes)));
    image = image.subspan(bytes);
  }
  return Status::ok();
}

/// Of one tensor, whose residual lies where it does itself.
static Status gatherTensor(const qlora_parameter &parameter, uint32_t arena,
                           Device &device, RankGroup &group,
                           std::span<uint8_t> image) {
  std::vector<uint8_t> mine;
  for (uint64_t at = 0; at < parameter.bytes; at += kWindow) {
    mine.resize(std::min(kWindow, parameter.bytes - at));
    QLORA_RETURN_IF_ERROR(device.read(arena, parameter.offset + at, mine));
    QLORA_ASSIGN_OR_RETURN(const auto all,
                           group.collectives().allGather(textOf(mine)));
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].size() != mine.size())
        return isNotOfThisSize(rank, all[rank].size(), mine.size());
      if (group.rank() == 0)
        std::memcpy(image.data() + rank * parameter.bytes + at,
                    all[rank].data(), mine.size());
    }
  }
  return Status::ok();
}

StatusOr<std::vector<uint8_t>> gatherResiduals(const LoadedModule &module,
                                               Device &device,
                                               RankGroup &group) {
  std::vector<uint8_t> image;
  const auto arena = module.arena(QLORA_ARENA_RESIDUAL);
  if (!arena)
    return image;
  const auto ranks = static_cast<uint64_t>(group.size());
  if (group.rank() == 0)
    image.resize(trainedBytesOf(module) * ranks);
  QLORA_RETURN_IF_ERROR(forEachTensor(
      module, ranks, image,
      [&](const qlora_parameter &parameter, std::span<uint8_t> part) {
        return gatherTensor(parameter, *arena, device, group, part);
      }));
  return image;
}

std::vector<SafetensorsItem> residualItems(const LoadedModule &module,
                                           int64_t ranks,
                                           std::span<const uint8_t> image) {
  std::vector<SafetensorsItem> items;
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    const uint64_t bytes = parameter->bytes * static_cast<uint64_t>(ranks);
    std::vector<int64_t> shape{ranks};
    shape.insert(shape.end(), parameter->shape,
                 parameter->shape + parameter->rank);
    items.push_back({trainedName(module, *parameter), SafetensorsDtype::kF32,
                     std::move(shape), image.first(bytes)});
    image = image.subspan(bytes);
  }
  return items;
}

//===----------------------------------------------------------------------===//
// Restoring
//===----------------------------------------------------------------------===//

/// Of what an earlier run's rank had, to that of the rank that takes it.
static void addTo(std::span<uint8_t> sum, std::span<const uint8_t> more) {
  for (size_t at = 0; at < sum.size(); at += sizeof(float)) {
    float one, other;
    std::memcpy(&one, sum.data() + at, sizeof(float));
    std::memcpy(&other, more.data() + at, sizeof(float));
    one += other;
    std::memcpy(sum.data() + at, &one, sizeof(float));
  }
}

/// A tensor of the file, of as many ranks as it says, for those of this run.
static Status readTensor(const SafetensorsFile &file, const std::string &name,
                         const qlora_parameter &parameter, uint64_t ranks,
                         std::span<uint8_t> image) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *tensor, file.get(name));
  const std::span shape(parameter.shape, parameter.rank);
  if (tensor->dtype != SafetensorsDtype::kF32 ||
      tensor->shape.size() != shape.size() + 1 || tensor->shape[0] < 1 ||
      !std::equal(shape.begin(), shape.end(), tensor->shape.begin() + 1))
    return Status::invalid("'{}': tensor '{}' is {} {}, and train.so has {} for "
                           "each rank; resume it with the program that it is of",
                           file.path(), name,
                           safetensorsDtypeName(tensor->dtype),
                           formatShape(tensor->shape),
                           formatShape({shape.begin(), shape.end()}));
  std::vector<uint8_t> one(parameter.bytes);
  for (uint64_t from = 0; from < static_cast<uint64_t>(tensor->shape[0]);
       ++from) {
    const std::span to =
        image.subspan(from % ranks * parameter.bytes, parameter.bytes);
    // The first as it is, zeros with their signs.
    const std::span<uint8_t> read = from < ranks ? to : std::span(one);
    QLORA_RETURN_IF_ERROR(file.read(*tensor, from * parameter.bytes, read));
    if (from >= ranks)
      addTo(to, one);
  }
  return Status::ok();
}

static StatusOr<std::vector<uint8_t>> readImage(const std::string &path,
                                                const LoadedModule &module,
                                                uint64_t ranks) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::open(path));
  std::vector<uint8_t> image(trainedBytesOf(module) * ranks);
  QLORA_RETURN_IF_ERROR(forEachTensor(
      module, ranks, image,
      [&](const qlora_parameter &parameter, std::span<uint8_t> part) {
        return readTensor(file, trainedName(module, parameter), parameter,
                          ranks, part);
      }));
  return image;
}

/// Rank 0 has the image; each takes its own.
static Status shareTensor(const qlora_parameter &parameter, uint32_t arena,
                          Device &device, RankGroup &group,
                          std::span<const uint8_t> image) {
  for (uint64_t rank = 0; rank < static_cast<uint64_t>(group.size()); ++rank)
    for (uint64_t at = 0; at < parameter.bytes; at += kWindow) {
      const uint64_t bytes = std::min(kWindow, parameter.bytes - at);
      std::string_view mine;
      if (group.rank() == 0)
        mine = textOf(image.subspan(rank * parameter.bytes + at, bytes));
      QLORA_ASSIGN_OR_RETURN(const auto all,
                             group.collectives().allGather(mine));
      if (all[0].size() != bytes)
        return isNotOfThisSize(0, all[0].size(), bytes);
      if (rank == static_cast<uint64_t>(group.rank()))
        QLORA_RETURN_IF_ERROR(device.write(
            arena, parameter.offset + at,
            {reinterpret_cast<const uint8_t *>(all[0].data()), bytes}));
    }
  return Status::ok();
}

bool hasResiduals(const std::string &checkpoint) {
  std::error_code ignored;
  return std::filesystem::exists(checkpoint + "/" + kResidualsFile, ignored);
}

Status restoreResiduals(const std::string &checkpoint,
                        const LoadedModule &module, Device &device,
                        RankGroup &group) {
  const auto arena = module.arena(QLORA_ARENA_RESIDUAL);
  if (!arena)
    return Status::ok();
  const auto ranks = static_cast<uint64_t>(group.size());
  std::vector<uint8_t> image;
  if (group.rank() == 0 && hasResiduals(checkpoint)) {
    QLORA_ASSIGN_OR_RETURN(
        image, readImage(checkpoint + "/" + kResidualsFile, module, ranks));
  } else if (group.rank() == 0) {
    image.resize(trainedBytesOf(module) * ranks);
  }
  return forEachTensor(
      module, ranks, image,
      [&](const qlora_parameter &parameter, std::span<uint8_t> part) {
        return shareTensor(parameter, *arena, device, group, part);
      });
}

} // namespace qlora
