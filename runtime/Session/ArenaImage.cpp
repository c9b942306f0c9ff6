// SPDX-License-Identifier: MIT

// Windows of pieces, from all ranks to rank 0 and back.

#include "runtime/Session/ArenaImage.h"

#include <algorithm>

#include "runtime/Session/RankResiduals.h"

namespace qlora {

/// What ranks are sent at a time.
static constexpr uint64_t kWindow = uint64_t{4} << 20;

/// Ranks that hold pieces of what is in the arena.
static uint32_t piecesOf(const LoadedModule &module, qlora_arena_kind kind) {
  const qlora_module &table = module.table();
  return kind == QLORA_ARENA_STATE
             ? std::max(table.update_pieces, table.trained_pieces)
             : table.trained_pieces;
}

ArenaImage::ArenaImage(const LoadedModule &module, qlora_arena_kind kind)
    : module(module), arena(module.arena(kind).value_or(QLORA_NONE)),
      size(module.arenaBytes(kind)) {
  const uint32_t pieces = piecesOf(module, kind);
  if (pieces == 1)
    return;
  for (const qlora_parameter &parameter : module.parameters())
    if (parameter.arena == arena)
      ranges[parameter.offset] = {arenaBytesOf(parameter),
                                  parameter.piece != 0 ? pieces : 1, 0};
  size = 0;
  for (auto &[offset, range] : ranges) {
    range.image = size;
    size += range.bytes * range.pieces;
  }
}

uint64_t ArenaImage::offsetOf(const qlora_parameter &parameter) const {
  const auto found = ranges.find(parameter.offset);
  return found == ranges.end() ? parameter.offset
                               : found->second.image + parameter.first;
}

/// Part of a piece: where it is in the arena of its rank, and in the image.
struct ArenaImage::Window {
  uint32_t number;  ///< of the rank in its group that has it
  bool isOfAll;     ///< the others have it too
  uint64_t local, image, bytes;
};

/// Everything that a file has of the arena, in the order of the image.
std::vector<ArenaImage::Window> ArenaImage::windows() const {
  std::vector<Window> found;
  const auto add = [&](uint64_t offset, const Range &range) {
    for (uint32_t number = 0; number < range.pieces; ++number)
      for (uint64_t at = 0; at < range.bytes; at += kWindow)
        found.push_back({number, range.pieces == 1, offset + at,
                         range.image + number * range.bytes + at,
                         std::min(kWindow, range.bytes - at)});
  };
  if (ranges.empty())
    add(0, {size, 1, 0});
  for (const auto &[offset, range] : ranges)
    add(offset, range);
  return found;
}

static std::string_view textOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

StatusOr<std::vector<uint8_t>> ArenaImage::gather(Device &device,
                                                  RankGroup &group) const {
  std::vector<uint8_t> image;
  // Every group has all of it: the first one is asked.
  if (ranges.empty() ||
      group.mesh().first(QLORA_GROUP_FSDP, group.rank()) != 0)
    return image;
  if (group.rank() == 0)
    image.resize(size);
  Collectives &pieces = group.collectives(QLORA_GROUP_FSDP);
  for (const Window &window : windows()) {
    std::vector<uint8_t> mine;
    if (static_cast<uint32_t>(pieces.rank()) == window.number) {
      mine.resize(window.bytes);
      QLORA_RETURN_IF_ERROR(device.read(arena, window.local, mine));
    }
    QLORA_ASSIGN_OR_RETURN(const auto all, pieces.allGather(textOf(mine)));
    const std::string &found = all[window.number];
    if (found.size() != window.bytes)
      return Status::error(StatusCode::kInternal,
                           "rank {} has {} bytes of pieces in place of {}",
                           window.number, found.size(), window.bytes);
    if (group.rank() == 0)
      std::ranges::copy(found, image.begin() +
                                   static_cast<std::ptrdiff_t>(window.image));
  }
  return image;
}

Status ArenaImage::share(std::span<const uint8_t> image, Device &device,
                         RankGroup &group) const {
  const auto own =
      static_cast<uint32_t>(group.collectives(QLORA_GROUP_FSDP).rank());
  for (const Window &window : windows()) {
    std::string_view mine;
    if (group.rank() == 0)
      mine = textOf(image.subspan(window.image, window.bytes));
    QLORA_ASSIGN_OR_RETURN(const auto all, group.collectives().allGather(mine));
    if (all[0].size() != window.bytes)
      return Status::error(StatusCode::kAborted,
                           "rank 0 has another checkpoint than it said");
    if (window.isOfAll || window.number == own)
      QLORA_RETURN_IF_ERROR(device.write(
          arena, window.local,
          {reinterpret_cast<const uint8_t *>(all[0].data()), window.bytes}));
  }
  return Status::ok();
}

StatusOr<GatheredArenas> GatheredArenas::of(const LoadedModule &module,
                                            Device &device, RankGroup &group) {
  GatheredArenas found;
  QLORA_ASSIGN_OR_RETURN(
      found.trained,
      ArenaImage(module, QLORA_ARENA_TRAINABLE).gather(device, group));
  QLORA_ASSIGN_OR_RETURN(
      found.states,
      ArenaImage(module, QLORA_ARENA_STATE).gather(device, group));
  QLORA_ASSIGN_OR_RETURN(found.residuals,
                         gatherResiduals(module, device, group));
  return found;
}

} // namespace qlora
