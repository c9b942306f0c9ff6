// SPDX-License-Identifier: MIT

// Properties of groups of ranks and of the axes of --parallel, from the rows of
// ABI/Enums.def. Code asks for a property, not for the name of an axis.

#ifndef QLORA_RUNTIME_OPTIONS_MESHAXES_H
#define QLORA_RUNTIME_OPTIONS_MESHAXES_H

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "runtime/ABI/collective.h"

namespace qlora {

/// Which ranks of a run form a group. ABI/Enums.def defines the places.
enum class MeshPlace { Run, Inner, Middle, Outer };
/// Rows of data of the ranks of a group.
enum class RankRows { Own, Same };

struct GroupTraits {
  MeshPlace place;
  RankRows rows;
  std::string_view title; ///< "tensor parallel"
};

/// Indexed by enum qlora_group.
inline constexpr GroupTraits kGroups[] = {
#define QLORA_GROUP(NAME, NUMBER, CASE, WORD, PLACE, ROWS, TITLE) \
  {MeshPlace::PLACE, RankRows::ROWS, TITLE},
#include "runtime/ABI/Enums.def"
};
static_assert(std::size(kGroups) == QLORA_GROUP_COUNT);

/// Traits of an axis, which may be combined.
enum AxisTraits : unsigned {
  kNothing = 0,
  kPieces = 1, ///< frozen weights have a `piece`; commands gather them
  kSlices = 2, ///< frozen weights have `slices`; each rank uses only its own
  kTables = 4, ///< tables of tokens are sharded by rows
  kOnlyUpdates = 8, ///< micro-batches have no collective over the axis
};

/// An axis of --parallel.
struct MeshAxis {
  std::string_view name;
  uint32_t qlora_mesh::*ranks;
  qlora_group group;
  unsigned traits;
  std::string_view words; ///< what a program does over the axis

  constexpr bool has(unsigned wanted) const {
    return (traits & wanted) == wanted;
  }
  constexpr MeshPlace place() const { return kGroups[group].place; }
};

/// In the order of the text of --parallel.
inline constexpr MeshAxis kMeshAxes[] = {
#define QLORA_AXIS(NAME, GROUP, TRAITS, WORDS) \
  {#NAME, &qlora_mesh::NAME, QLORA_GROUP_##GROUP, TRAITS, WORDS},
#include "runtime/ABI/Enums.def"
};

/// Returns the last axis of more than one rank with all of `traits`, or
/// nullptr.
constexpr const MeshAxis *axisWith(const qlora_mesh &mesh, unsigned traits) {
  const MeshAxis *found = nullptr;
  for (const MeshAxis &axis : kMeshAxes)
    if (mesh.*axis.ranks > 1 && axis.has(traits))
      found = &axis;
  return found;
}

/// Whether the slices of a mesh are over ranks that may also have pieces. So
/// ranks with different pieces have different slices.
constexpr bool slicesOverPieceRanks(const qlora_mesh &mesh) {
  const MeshAxis *axis = axisWith(mesh, kSlices);
  return axis && axis->place() == kGroups[QLORA_GROUP_FSDP].place;
}

/// Returns the number of ranks that hold one stage's base together.
constexpr int64_t baseHolders(const qlora_mesh &mesh) {
  int64_t inner = 1, middle = 1;
  for (const MeshAxis &axis : kMeshAxes)
    if (axis.traits & (kPieces | kSlices)) {
      int64_t &most = axis.place() == MeshPlace::Inner ? inner : middle;
      most = std::max<int64_t>(most, mesh.*axis.ranks);
    }
  return inner * middle;
}

/// Whether a micro-batch has collectives, so that all ranks of a mesh must run
/// the same micro-batches.
constexpr bool meetsInMicroBatches(const qlora_mesh &mesh) {
  return std::ranges::any_of(kMeshAxes, [&](const MeshAxis &axis) {
    return mesh.*axis.ranks > 1 && !axis.has(kOnlyUpdates);
  });
}

/// Whether all axes of more than one rank are of group FSDP. Then each rank
/// computes its own rows with whole weights, which it may have to gather.
constexpr bool usesOnlyFsdpRanks(const qlora_mesh &mesh) {
  return std::ranges::none_of(kMeshAxes, [&](const MeshAxis &axis) {
    return mesh.*axis.ranks > 1 && axis.group != QLORA_GROUP_FSDP;
  });
}

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_MESHAXES_H
