// SPDX-License-Identifier: MIT

// A planned entry, prepared for drawing: buffers with address, lifetime and
// category, and the times of the commands.
//
//      address
//        |   +--------------+
//        |   |  decoded     |   a buffer is a rectangle: first to last
//        +---+------+-------+   command, offset to offset + bytes;
//        |  saved           |   no two of an arena overlap
//        +------------------+--> command
//
// Contains buffers of the two arenas that plan-memory packs. The content of the
// other arenas never changes place.

#ifndef QLORA_COMPILER_REPORT_ENTRYTIMELINE_H
#define QLORA_COMPILER_REPORT_ENTRYTIMELINE_H

#include "compiler/Report/CommandTimes.h"

#include <array>

namespace qlora {

/// Use of a buffer in the activation arena: the first matching category.
enum class BufferCategory : uint8_t {
  Gathered,   ///< frozen weights that came from other ranks or the host
  Saved,      ///< a forward value that the backward reads
  Recomputed, ///< a forward value that the backward computes again
  Decoded,    ///< made only of frozen weights
  Forward,    ///< dies in the forward, or the entry has no backward
  Backward,   ///< gradients of activations
  Workspace,  ///< scratch of one launch; its whole arena
  Count
};
/// "saved", "recomputed", ...
llvm::StringRef nameOf(BufferCategory category);

/// A buffer and its lifetime, as indices in commandsOf(entry), both included.
struct TimelineBuffer {
  program::BufferOp op;
  int64_t first = 0, last = 0;
  BufferCategory category = BufferCategory::Forward;
};

/// The first command with the most live bytes in the activation arena.
struct TimelinePeak {
  int64_t command = 0;
  int64_t bytes = 0; ///< live bytes; packing makes the arena larger
  std::array<int64_t, size_t(BufferCategory::Count)> byCategory{};
};

struct EntryTimeline {
  program::EntryOp entry;
  llvm::SmallVector<mlir::Operation *> commands;
  std::vector<TimelineSpan> spans; ///< of the commands, in seconds
  std::vector<TimelineBuffer> buffers;
  TimelinePeak peak;

  double seconds() const; ///< end of the last command
};

/// `entry` must be planned: every buffer has its offset. Without `times` there
/// are no spans.
EntryTimeline timelineOf(program::EntryOp entry,
                         const CommandTimes *times = nullptr);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_ENTRYTIMELINE_H
