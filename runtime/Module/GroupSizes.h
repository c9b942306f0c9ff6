// SPDX-License-Identifier: MIT

// How many ranks each group has (ABI/Enums.def), and which: all of it
// follows from what a program is for and from how many ranks there are.
//
//   const GroupSizes groups = GroupSizes::of(header).on(8);
//   groups[QLORA_GROUP_FSDP]              ranks of each
//   groups.number(QLORA_GROUP_FSDP, rank) which of them a rank of the run is
//   groups.stride(QLORA_GROUP_FSDP)       from each of them to the next one

#ifndef QLORA_RUNTIME_MODULE_GROUPSIZES_H
#define QLORA_RUNTIME_MODULE_GROUPSIZES_H

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "runtime/ABI/module.h"

namespace qlora {

class GroupSizes {
public:
  using Axis = std::pair<qlora_group, int64_t>;

  /// A mesh by itself: groups FSDP, TP, CP, PP and EP of so many ranks, those
  /// that are not named of one.
  constexpr GroupSizes(std::initializer_list<Axis> axes = {}) {
    sizes.fill(1);
    for (const auto &[group, ranks] : axes)
      sizes[group] = ranks;
    *this = on(meshSize());
  }
  /// What a program is for.
  static constexpr GroupSizes of(const qlora_module &header) {
    return {{QLORA_GROUP_FSDP, std::max({header.shards, header.update_pieces,
                                         header.trained_pieces})},
            {QLORA_GROUP_TP, header.tensor_ranks},
            {QLORA_GROUP_CP, header.context_ranks},
            {QLORA_GROUP_PP, header.stages},
            {QLORA_GROUP_EP, header.expert_ranks}};
  }
  /// The same mesh, as often as a run of `ranks` ranks has it.
  constexpr GroupSizes on(int64_t ranks) const {
    GroupSizes all = *this;
    all.sizes[QLORA_GROUP_DP] = ranks;
    if (sizes[QLORA_GROUP_FSDP] > 1) // there are pieces
      all.sizes[QLORA_GROUP_REPLICAS] =
          std::max<int64_t>(1, ranks / stride(QLORA_GROUP_REPLICAS));
    return all;
  }

  constexpr int64_t operator[](unsigned group) const { return sizes[group]; }
  /// Ranks of all groups but DP and REPLICAS together, of which those of FSDP,
  /// CP and EP are the same ones: what may run is a multiple.
  constexpr int64_t meshSize() const {
    return std::max({sizes[QLORA_GROUP_FSDP], sizes[QLORA_GROUP_CP],
                     sizes[QLORA_GROUP_EP]}) *
           sizes[QLORA_GROUP_TP] * sizes[QLORA_GROUP_PP];
  }
  constexpr int64_t stride(unsigned group) const {
    switch (group) {
    case QLORA_GROUP_FSDP:
    case QLORA_GROUP_CP:
    case QLORA_GROUP_EP:
      return sizes[QLORA_GROUP_TP];
    case QLORA_GROUP_PP:
      return std::max<int64_t>(1, sizes[QLORA_GROUP_DP] /
                                      sizes[QLORA_GROUP_PP]);
    case QLORA_GROUP_REPLICAS:
      return sizes[QLORA_GROUP_FSDP] * sizes[QLORA_GROUP_TP];
    default:
      return 1;
    }
  }
  constexpr int64_t number(unsigned group, int64_t rank) const {
    return rank / stride(group) % sizes[group];
  }
  /// The rank that is number 0 of a rank's group.
  constexpr int64_t first(unsigned group, int64_t rank) const {
    return rank - number(group, rank) * stride(group);
  }

  /// Ranks that have the same rows.
  constexpr int64_t rowRanks() const {
    return sizes[QLORA_GROUP_TP] * sizes[QLORA_GROUP_CP] *
           sizes[QLORA_GROUP_PP];
  }
  /// Where these are one: how many there are, and which a rank is a part of.
  constexpr int64_t dataRanks() const {
    return sizes[QLORA_GROUP_DP] / rowRanks();
  }
  constexpr int64_t dataRank(int64_t rank) const {
    return rank % stride(QLORA_GROUP_PP) /
           (sizes[QLORA_GROUP_TP] * sizes[QLORA_GROUP_CP]);
  }

  constexpr bool operator==(const GroupSizes &) const = default;

private:
  std::array<int64_t, QLORA_GROUP_COUNT> sizes{};
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_GROUPSIZES_H
