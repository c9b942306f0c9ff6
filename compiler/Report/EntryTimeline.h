// SPDX-License-Identifier: MIT

// A planned entry, prepared for drawing: its buffers with address, lifetime and
// category, and the times of its commands.
//
//      address
//        |   +--------------+
//        |   |  decoded     |   a buffer is a rectangle: first to last
//        +---+------+-------+   command, offset to offset + bytes;
//        |  saved           |   no two of an arena overlap
//        +------------------+--> command
//
// Only buffers of the activation and workspace arenas are included. Other
// arenas hold permanent content at fixed addresses.

#ifndef QLORA_COMPILER_REPORT_ENTRYTIMELINE_H
#define QLORA_COMPILER_REPORT_ENTRYTIMELINE_H

#include "dialects/Program/Program.h"
#include "runtime/Predict/Timeline.h"

#include <array>
#include <vector>

namespace qlora {

/// What a buffer is used for.
enum class BufferCategory : uint8_t {
  Gathered,   ///< a frozen weight that came from other ranks or the host
  Saved,      ///< a forward value that the backward reads
  Recomputed, ///< a forward value that the backward recomputes
  Decoded,    ///< computed from frozen weights alone
  Forward,    ///< any other value of the forward, or of an update
  Backward,   ///< any other value of the backward
  Workspace,  ///< scratch memory of one launch, in the workspace arena
  Count
};
/// Returns the category's name in reports: "saved", "recomputed", ...
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
  int64_t bytes = 0; ///< live bytes; less than the arena, which has gaps
  std::array<int64_t, size_t(BufferCategory::Count)> byCategory{};
};

struct EntryTimeline {
  program::EntryOp entry;
  llvm::SmallVector<mlir::Operation *> commands;
  std::vector<TimelineSpan> spans; ///< of the commands, in seconds; or empty
  std::vector<TimelineBuffer> buffers;
  TimelinePeak peak;
};

/// Returns the timeline of an entry whose buffers all have offsets, without
/// spans.
EntryTimeline timelineOf(program::EntryOp entry);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_ENTRYTIMELINE_H
