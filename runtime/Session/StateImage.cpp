// SPDX-License-Identifier: MIT

// Windows of pieces, from all ranks to rank 0 and back.

#include "runtime/Session/StateImage.h"

#include <algorithm>
#include <map>

namespace qlora {

/// What ranks are sent at a time.
static constexpr uint64_t kWindow = uint64_t{4} << 20;

static bool isDivided(const LoadedModule &module, qlora_arena_kind kind) {
  return kind == QLORA_ARENA_STATE && module.table().update_pieces > 1;
}

uint64_t imageOffset(const LoadedModule &module,
                     const qlora_parameter &parameter) {
  const auto kind =
      static_cast<qlora_arena_kind>(module.arenas()[parameter.arena].kind);
  return isDivided(module, kind) && parameter.piece != 0
             ? module.table().update_pieces * parameter.offset + parameter.first
             : parameter.offset;
}

uint64_t imageBytes(const LoadedModule &module, qlora_arena_kind kind) {
  return module.arenaBytes(kind) *
         (isDivided(module, kind) ? module.table().update_pieces : 1);
}

namespace {
/// Part of a piece: where it is in the arena of its rank, and in the image.
struct Window {
  uint32_t number; ///< of the rank in its group
  uint64_t local, image, bytes;
};
} // namespace

/// Everything that a file has of the arena, in the order of the image.
static std::vector<Window> windowsOf(const LoadedModule &module,
                                     qlora_arena_kind kind) {
  if (!isDivided(module, kind)) {
    const uint64_t bytes = module.arenaBytes(kind);
    std::vector<Window> windows;
    for (uint64_t at = 0; at < bytes; at += kWindow)
      windows.push_back({0, at, at, std::min(kWindow, bytes - at)});
    return windows;
  }
  std::map<uint64_t, uint64_t> ranges; // offset to the bytes of a piece
  for (const qlora_parameter &parameter : module.parameters())
    if (module.arenas()[parameter.arena].kind == kind)
      ranges[parameter.offset] = parameter.piece;
  const uint32_t pieces = module.table().update_pieces;
  std::vector<Window> windows;
  for (const auto &[offset, bytes] : ranges)
    for (uint32_t number = 0; number < pieces; ++number)
      for (uint64_t at = 0; at < bytes; at += kWindow)
        windows.push_back({number, offset + at,
                           pieces * offset + number * bytes + at,
                           std::min(kWindow, bytes - at)});
  return windows;
}

static std::string_view textOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

StatusOr<std::vector<uint8_t>> gatherStates(const LoadedModule &module,
                                            Device &device, RankGroup &group) {
  std::vector<uint8_t> image;
  // Every group has all of it: the first one is asked.
  if (!isDivided(module, QLORA_ARENA_STATE) ||
      group.rank() >= module.groupSize())
    return image;
  if (group.rank() == 0)
    image.resize(imageBytes(module, QLORA_ARENA_STATE));
  Collectives &pieces = group.collectives(QLORA_GROUP_FSDP);
  for (const Window &window : windowsOf(module, QLORA_ARENA_STATE)) {
    std::vector<uint8_t> mine;
    if (static_cast<uint32_t>(pieces.rank()) == window.number) {
      mine.resize(window.bytes);
      QLORA_RETURN_IF_ERROR(device.read(*module.arena(QLORA_ARENA_STATE),
                                        window.local, mine));
    }
    QLORA_ASSIGN_OR_RETURN(const auto all, pieces.allGather(textOf(mine)));
    const std::string &found = all[window.number];
    if (found.size() != window.bytes)
      return Status::error(StatusCode::kInternal,
                           "rank {} has {} bytes of states in place of {}",
                           window.number, found.size(), window.bytes);
    if (group.rank() == 0)
      std::ranges::copy(found, image.begin() +
                                   static_cast<std::ptrdiff_t>(window.image));
  }
  return image;
}

Status shareImage(std::span<const uint8_t> image, const LoadedModule &module,
                  qlora_arena_kind kind, Device &device, RankGroup &group) {
  const auto own = static_cast<uint32_t>(
      isDivided(module, kind) ? group.collectives(QLORA_GROUP_FSDP).rank() : 0);
  for (const Window &window : windowsOf(module, kind)) {
    std::string_view mine;
    if (group.rank() == 0)
      mine = textOf(image.subspan(window.image, window.bytes));
    QLORA_ASSIGN_OR_RETURN(const auto all, group.collectives().allGather(mine));
    if (all[0].size() != window.bytes)
      return Status::error(StatusCode::kAborted,
                           "rank 0 has another checkpoint than it said");
    if (window.number == own)
      QLORA_RETURN_IF_ERROR(device.write(
          *module.arena(kind), window.local,
          {reinterpret_cast<const uint8_t *>(all[0].data()), window.bytes}));
  }
  return Status::ok();
}

} // namespace qlora
