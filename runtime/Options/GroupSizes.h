// SPDX-License-Identifier: MIT

// Sizes of the groups of ranks (ABI/Enums.def), and the position of a rank in
// its groups. Computed from a mesh and the number of ranks.
//
//   const GroupSizes groups = GroupSizes(header.mesh).on(8);
//   groups[QLORA_GROUP_FSDP]              ranks per group
//   groups.number(QLORA_GROUP_FSDP, rank) index of a rank in its group
//   groups.stride(QLORA_GROUP_FSDP)       distance of consecutive group ranks

#ifndef QLORA_RUNTIME_OPTIONS_GROUPSIZES_H
#define QLORA_RUNTIME_OPTIONS_GROUPSIZES_H

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/Options/MeshAxes.h"

namespace qlora {

class GroupSizes {
public:
  /// One rank.
  constexpr GroupSizes() { sizes.fill(1); }
  /// One mesh. Axes of one group have the same size, unless 1.
  constexpr explicit GroupSizes(const qlora_mesh &mesh) : GroupSizes() {
    for (const MeshAxis &axis : kMeshAxes)
      sizes[axis.group] =
          std::max<int64_t>(sizes[axis.group], mesh.*axis.ranks);
    *this = on(meshSize());
  }
  /// Returns the sizes in a run of `ranks` ranks, which repeats the mesh.
  constexpr GroupSizes on(int64_t ranks) const {
    GroupSizes all = *this;
    all.sizes[QLORA_GROUP_DP] = ranks;
    if (sizes[QLORA_GROUP_FSDP] > 1) // there are fsdp shards
      all.sizes[QLORA_GROUP_REPLICAS] =
          std::max<int64_t>(1, ranks / stride(QLORA_GROUP_REPLICAS));
    return all;
  }

  /// Returns the sizes in a run of `ranks` ranks, or in one mesh if that has
  /// more ranks.
  constexpr GroupSizes onAtLeast(int64_t ranks) const {
    return on(std::max(ranks, meshSize()));
  }

  constexpr int64_t operator[](unsigned group) const { return sizes[group]; }
  /// Ranks of one mesh, which has all groups except those of MeshPlace::Run. A
  /// run has a multiple of this number.
  constexpr int64_t meshSize() const {
    return largest(MeshPlace::Inner) * largest(MeshPlace::Middle) *
           largest(MeshPlace::Outer);
  }
  constexpr int64_t stride(unsigned group) const {
    if (group == QLORA_GROUP_REPLICAS)
      return sizes[QLORA_GROUP_FSDP] * largest(MeshPlace::Inner);
    switch (kGroups[group].place) {
    case MeshPlace::Middle:
      return largest(MeshPlace::Inner);
    case MeshPlace::Outer:
      return std::max<int64_t>(1, sizes[QLORA_GROUP_DP] / sizes[group]);
    default:
      return 1;
    }
  }
  constexpr int64_t number(unsigned group, int64_t rank) const {
    return rank / stride(group) % sizes[group];
  }
  /// Returns the rank that has number 0 in the group of `rank`.
  constexpr int64_t first(unsigned group, int64_t rank) const {
    return rank - number(group, rank) * stride(group);
  }

  /// Number of ranks that process the same rows of data.
  constexpr int64_t rowRanks() const {
    return sizes[QLORA_GROUP_PP] * rowRanksOfStage();
  }
  /// dataRanks: number of sets of ranks with the same rows of data. dataRank:
  /// index of a rank's set.
  constexpr int64_t dataRanks() const {
    return sizes[QLORA_GROUP_DP] / rowRanks();
  }
  constexpr int64_t dataRank(int64_t rank) const {
    return rank % stride(QLORA_GROUP_PP) / rowRanksOfStage();
  }

  constexpr bool operator==(const GroupSizes &) const = default;

private:
  /// Returns the size of the largest group of a place.
  constexpr int64_t largest(MeshPlace place) const {
    int64_t most = 1;
    for (unsigned group = 0; group < QLORA_GROUP_COUNT; ++group)
      if (kGroups[group].place == place)
        most = std::max(most, sizes[group]);
    return most;
  }
  /// Number of ranks of one pipeline stage with the same rows of data.
  constexpr int64_t rowRanksOfStage() const {
    int64_t ranks = 1;
    for (unsigned group = 0; group < QLORA_GROUP_COUNT; ++group)
      if (kGroups[group].rows == RankRows::Same &&
          kGroups[group].place != MeshPlace::Outer)
        ranks *= sizes[group];
    return ranks;
  }

  std::array<int64_t, QLORA_GROUP_COUNT> sizes{};
};

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_GROUPSIZES_H
