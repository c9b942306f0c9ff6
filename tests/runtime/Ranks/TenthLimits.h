// SPDX-License-Identifier: MIT

// Time limits of ranks in tests: a tenth of a job's limits, so that tests in
// which a limit expires are fast.

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
  // On a busy machine a thread may not run for seconds, so more heartbeats may
  // be missed. No test waits for `neighbours`, which is unchanged.
  heartbeat.missed *= 10;
  return limits;
}();

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_RANKS_TENTHLIMITS_H
