// SPDX-License-Identifier: MIT

// The time limits of ranks in tests: a tenth of those of a job, so that a test
// that waits for one is quick.

#ifndef QLORA_TESTS_RUNTIME_RANKS_TENTHLIMITS_H
#define QLORA_TESTS_RUNTIME_RANKS_TENTHLIMITS_H

#include "runtime/Ranks/RankTimeLimits.h"

namespace qlora {

inline constexpr RankTimeLimits kTenthLimits = [] {
  RankTimeLimits limits;
  HeartbeatTiming &heartbeat = limits.heartbeat;
  for (std::chrono::milliseconds *each :
       {&limits.handshake, &limits.stranger, &limits.longer, &limits.closing,
        &limits.telling, &heartbeat.beat, &heartbeat.settle, &heartbeat.word})
    *each /= 10;
  // No test waits for `neighbours`, or for a heartbeat that is missed with
  // these limits. On a busy machine a thread may not run for seconds.
  heartbeat.missed *= 10;
  return limits;
}();

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_RANKS_TENTHLIMITS_H
