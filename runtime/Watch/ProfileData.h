// SPDX-License-Identifier: MIT

// What a rank's profile is made of: the commands that its device ran and the
// work of its host thread, in nanoseconds since the profile began. All ranks
// begin it together, so that their times are one timeline.

#ifndef QLORA_RUNTIME_WATCH_PROFILEDATA_H
#define QLORA_RUNTIME_WATCH_PROFILEDATA_H

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/CommandTimer.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// What the host thread of a rank does. kStep holds all that follow it here.
/// On a CPU the commands of the compute queue run inside kAccumulate and
/// kUpdate; for a GPU these only put them on its queues.
enum class HostWork {
  kStep,
  kData, ///< reading examples and building a micro-batch
  kAccumulate,
  kAgree, ///< sums of tokens and labels over ranks
  kUpdate,
  kResults, ///< waiting for losses
  kLog,
  kCount
};
std::string_view hostWorkName(HostWork work);

struct HostSpan {
  HostWork work = HostWork::kStep;
  int64_t step = 0; ///< from 1
  int64_t start = 0, end = 0;
};

struct RankProfile {
  std::vector<TimedCommand> commands;
  std::vector<HostSpan> host;
};

/// The profile of `rank`, where `own` is this rank's. All ranks call it.
StatusOr<RankProfile> shareProfile(RankGroup &group, int rank,
                                   const RankProfile &own);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_PROFILEDATA_H
