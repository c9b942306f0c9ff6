// SPDX-License-Identifier: MIT

// The order of commands that are issued one after the other to several queues.
// A queue runs its commands in order. Between queues, only events create an
// order:
//
//     issued   queue 0 (main)   queue 1
//       0      a
//       1      RECORD 0
//       2                       WAIT 0
//       3                       b            after a
//       4      c                             concurrent with b
//       5                       RECORD 1
//       6      WAIT 1
//       7      d                             after b
//
// All queues start idle. The entry ends when all queues are idle again.
//
// placeWaits() and spansBeside() keep a vector clock per queue: for every
// queue, the newest command that is known to be finished (Fidge; Mattern,
// 1988). RECORD stores the clock of its queue. WAIT joins the stored clock with
// the clock of the waiting queue.

#ifndef QLORA_COMPILER_SUPPORT_QUEUEORDER_H
#define QLORA_COMPILER_SUPPORT_QUEUEORDER_H

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

/// A command without events, and the earlier commands that must be finished
/// when it starts.
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

/// Returns the waits that enforce `after` of every command. No wait is needed
/// for a dependency that a queue's order or earlier waits imply, even through a
/// third queue. Waits are sorted by consumer, then by producer, newest first.
std::vector<QueueWait> placeWaits(std::span<const QueuedWork> commands);

enum class QueueAction : uint8_t { Work, Record, Wait };

struct QueueCommand {
  QueueAction action = QueueAction::Work;
  unsigned queue = 0;
  unsigned event = 0; ///< for Record and Wait; Record comes first
};

/// A range of positions in the list of commands, both ends included.
struct CommandSpan {
  int64_t first = 0;
  int64_t last = 0;
};

/// Returns when each command may run, as positions. The span of a command of
/// queue `main` is its own position. A command of another queue may run
/// concurrently with the commands of `main` from `first` to `last`. All
/// commands of `main` before `first` have finished when it starts. `last` is
/// the WAIT by which `main` waits for the command, or the last position if
/// there is none. In the example, b has [2, 6]: 2 is the first position after
/// RECORD 0.
///
/// If the largest `last` of a set of commands is before the smallest `first` of
/// another set, all commands of the first set finish before any command of the
/// second set starts, whatever their queues.
std::vector<CommandSpan> spansBeside(std::span<const QueueCommand> commands,
                                     unsigned main);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_QUEUEORDER_H
