// SPDX-License-Identifier: MIT

// An entry of a planned program as a picture wants it: what lives where, from
// which command to which, what for, and when the commands run.
//
//      address
//        |   +--------------+
//        |   |  decoded     |   a buffer is a rectangle: first to last
//        +---+------+-------+   command, offset to offset + bytes;
//        |  saved           |   no two of an arena overlap
//        +------------------+--> command
//
// Buffers are those of the two arenas that plan-memory packs; the others hold
// the same things all the time.

#ifndef QLORA_COMPILER_REPORT_ENTRYTIMELINE_H
#define QLORA_COMPILER_REPORT_ENTRYTIMELINE_H

#include "compiler/Report/CommandTimes.h"

#include <array>

namespace qlora {

/// What memory of the activation arena is for. A buffer is of the first kind
/// that it fits.
enum class BufferCategory : uint8_t {
  Gathered,   ///< frozen weights that came from other ranks or the host
  Saved,      ///< a forward value that the backward reads
  Recomputed, ///< a forward value that the backward computes again
  Decoded,    ///< made of frozen weights alone
  Forward,    ///< dies in the forward, or in an entry that has no backward
  Backward,   ///< gradients on their way
  Workspace,  ///< scratch of one launch; all of its arena
  Count
};
/// "saved", "recomputed", ...
llvm::StringRef nameOf(BufferCategory category);

/// Positions are among commandsOf(entry), both included.
struct TimelineBuffer {
  program::BufferOp op;
  int64_t first = 0, last = 0;
  BufferCategory category = BufferCategory::Forward;
};

/// The first command at which the activation arena has most bytes alive.
struct TimelinePeak {
  int64_t command = 0;
  int64_t bytes = 0; ///< alive; the arena's size is more by what packing lost
  std::array<int64_t, size_t(BufferCategory::Count)> byCategory{};
};

struct EntryTimeline {
  program::EntryOp entry;
  llvm::SmallVector<mlir::Operation *> commands;
  std::vector<TimelineSpan> spans; ///< of the commands, in seconds
  std::vector<TimelineBuffer> buffers;
  TimelinePeak peak;

  double seconds() const; ///< until the last command has ended
};

/// `entry` has been planned: every buffer has its offset. Without `times` there
/// are no spans.
EntryTimeline timelineOf(program::EntryOp entry,
                         const CommandTimes *times = nullptr);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_ENTRYTIMELINE_H
