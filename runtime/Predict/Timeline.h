// SPDX-License-Identifier: MIT

// When the commands of an entry would run: one clock, as many queues as the
// ABI has, RECORD and WAIT between them.
//
// Kernels of different queues that run at once share the card. Each alone
// would use a part of its arithmetic and of its bandwidth (demand over
// seconds); where the parts of one of the two add up to more than the whole,
// all that run are slowed by the excess. So a decode beside a GEMM takes
// bandwidth from it, and nothing else. Whether a card runs kernels side by side
// at all no card has shown yet: where they take turns, it does one at a time,
// as if each had all of it for its share of the time. Collectives of cards
// share with nobody: they are assumed to need neither. Those of CPU ranks copy,
// on the cores that kernels run on: one that asks for memory takes turns with
// them.
//
// Stages of a pipeline have a clock in common: what one sends to another begins
// when both have come to it.

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
  uint32_t event = 0; ///< of kRecord and kWait
  Demand demand;      ///< of all others
  int peer = 0;       ///< of kSend and kReceive: places on to the other stage
  uint64_t bytes = 0; ///< of these
};

/// When an item ran, in seconds from the start; of an event both are when it
/// happened or was over.
struct TimelineSpan {
  double start = 0, end = 0;
};

struct Timeline {
  double seconds = 0; ///< until all queues have ended
  /// While a collective ran and no kernel did, and while it waited for another
  /// stage; of turns that they took, the collective's.
  double exposedCommunication = 0;
  /// What kernels saved by running at once: their seconds alone, less those in
  /// which any ran.
  double overlapped = 0;
};

/// Walks the items, all queues from zero. Every event is recorded once, and
/// before (in item order) it is waited for, as a loaded module's are.
/// `spans`, unless empty, has an element for each item, which is written.
/// What is sent or received takes its time, as if the other stage were there.
Timeline simulate(std::span<const TimelineItem> items,
                  std::span<TimelineSpan> spans = {},
                  QueueSharing sharing = QueueSharing::kSideBySide);

/// The items of all stages of a pipeline, one rank of each. kDataLoss where
/// they wait for each other without an end, or one receives what is not sent.
StatusOr<std::vector<Timeline>>
simulateStages(std::span<const std::vector<TimelineItem>> stages,
               QueueSharing sharing = QueueSharing::kSideBySide);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_TIMELINE_H
