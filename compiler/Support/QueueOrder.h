// SPDX-License-Identifier: MIT

// The order of commands that are issued one after the other onto several
// queues. A queue runs its commands in order; between queues only events make
// an order:
//
//     issued   queue 0 (main)   queue 1
//       0      a
//       1      RECORD 0
//       2                       WAIT 0
//       3                       b            after a
//       4      c                             beside b
//       5                       RECORD 1
//       6      WAIT 1
//       7      d                             after b
//
// All queues start idle, and the entry ends when all of them have.
//
// Both functions keep a vector clock per queue: of every queue, the newest
// command that is known to be finished (Fidge; Mattern, 1988). RECORD keeps
// the clock of its queue, WAIT joins it with that of its own.

#ifndef QLORA_COMPILER_SUPPORT_QUEUEORDER_H
#define QLORA_COMPILER_SUPPORT_QUEUEORDER_H

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

/// A command without events, and the commands issued before it that have to
/// be finished when it starts.
struct QueuedWork {
  unsigned queue = 0;
  std::vector<size_t> after;
};

/// An event recorded right after command `producer` and waited for right
/// before command `consumer`.
struct QueueWait {
  size_t producer = 0;
  size_t consumer = 0;
};

/// The waits that give every command what it comes after. What the order of
/// a queue or an earlier wait implies, be it through a third queue, has none.
/// By consumer; of one consumer the newest producer comes first.
std::vector<QueueWait> placeWaits(std::span<const QueuedWork> commands);

enum class QueueAction : uint8_t { Work, Record, Wait };

struct QueueCommand {
  QueueAction action = QueueAction::Work;
  unsigned queue = 0;
  unsigned event = 0; ///< of a Record or Wait; recorded before it is waited for
};

/// Positions among the commands, both included.
struct CommandSpan {
  int64_t first = 0;
  int64_t last = 0;
};

/// When each command may run, told by the commands of queue `main`. One of
/// `main` has its own position. One of another queue may run beside those of
/// `main` from `first`, before which it knows all of `main` to be finished,
/// to `last`, a WAIT of `main` for it (or the last position, if there is
/// none): above, b has [2, 6] (2 is the first that RECORD 0 does not vouch
/// for).
///
/// So if one set of commands ends before another begins, by the last and
/// first positions of their spans, all of the first are finished before any
/// of the other starts, whatever the queues.
std::vector<CommandSpan> spansBeside(std::span<const QueueCommand> commands,
                                     unsigned main);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_QUEUEORDER_H
