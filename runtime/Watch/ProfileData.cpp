// SPDX-License-Identifier: MIT

// Profiles as numbers, from rank to rank.

#include "runtime/Watch/ProfileData.h"

namespace qlora {

std::string_view hostWorkName(HostWork work) {
  static constexpr std::string_view kNames[] = {
      "step",   "read and build a batch", "accumulate", "sums over ranks",
      "update", "wait for results",       "log"};
  return kNames[size_t(work)];
}

StatusOr<RankProfile> shareProfile(RankGroup &group, int rank,
                                   const RankProfile &own) {
  RankProfile none;
  const RankProfile &mine = group.rank() == rank ? own : none;
  QLORA_ASSIGN_OR_RETURN(auto commands,
                         group.collectives().allGatherValues(
                             std::span<const TimedCommand>(mine.commands)));
  QLORA_ASSIGN_OR_RETURN(auto host,
                         group.collectives().allGatherValues(
                             std::span<const HostSpan>(mine.host)));
  const auto from = static_cast<size_t>(rank);
  return RankProfile{std::move(commands[from]), std::move(host[from])};
}

} // namespace qlora
