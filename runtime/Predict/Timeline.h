// SPDX-License-Identifier: MIT

// Simulates when the commands of an entry run: one clock, the queues of the
// ABI, RECORD and WAIT between them.
//
// Kernels of different queues can run at once. Alone, each kernel would use a
// fraction of the GPU's arithmetic and a fraction of its bandwidth (demand over
// seconds). If the sum of either fraction over all running kernels is s > 1,
// each of them takes s times as long. So a decode alongside a GEMM takes only
// bandwidth from it. It has not been measured whether a GPU runs such kernels
// concurrently. With kTakeTurns they do not: n kernels at once each take n
// times as long.
//
// Collectives of GPUs are assumed to need neither arithmetic nor bandwidth.
// Collectives in the shared memory of CPU ranks take turns with kernels, since
// they copy on the same cores.
//
// Stages of a pipeline share a clock: a transfer waits for both stages.

#ifndef QLORA_RUNTIME_PREDICT_TIMELINE_H
#define QLORA_RUNTIME_PREDICT_TIMELINE_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Kernels/CostModel.h"

namespace qlora {

enum class QueueSharing { kSideBySide, kTakeTurns };

/// One kernel, collective or event, on its queue.
struct TimelineItem {
  enum class Kind { kKernel, kCollective, kSend, kReceive, kRecord, kWait };
  Kind kind = Kind::kKernel;
  uint32_t queue = 0; ///< below QLORA_QUEUE_COUNT
  uint32_t event = 0; ///< event of kRecord or kWait
  Demand demand;      ///< unused by kRecord and kWait
  int peer = 0; ///< kSend, kReceive: distance from this stage to the other
  uint64_t bytes = 0; ///< kSend, kReceive: size of the message
};

/// When an item ran, in seconds from the start. For an event, both times are
/// when it was recorded, or when the wait was over.
struct TimelineSpan {
  double start = 0, end = 0;
};

struct Timeline {
  double seconds = 0; ///< time until all queues have ended
  /// Seconds in which a collective ran without any kernel, or waited for
  /// another stage. While collectives and kernels take turns, only the
  /// collectives' share of the time counts.
  double exposedCommunication = 0;
  /// Seconds saved by running kernels concurrently: the sum of their times
  /// alone, less the seconds in which any kernel ran.
  double overlapped = 0;
};

/// Simulates the items; all queues start at zero. Every event is recorded once,
/// before it is waited for (in item order), as in a loaded module. A transfer
/// does not wait for the other stage. `spans` is empty or receives the span of
/// each item.
Timeline simulate(std::span<const TimelineItem> items,
                  std::span<TimelineSpan> spans = {},
                  QueueSharing sharing = QueueSharing::kSideBySide);

/// Simulates all stages of a pipeline, one rank of each. Returns kDataLoss if
/// they wait for each other endlessly, or if a RECV has no SEND.
StatusOr<std::vector<Timeline>>
simulateStages(std::span<const std::vector<TimelineItem>> stages,
               QueueSharing sharing = QueueSharing::kSideBySide);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_TIMELINE_H
