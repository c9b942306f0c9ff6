// SPDX-License-Identifier: MIT

// First and last command of each buffer of a straight line of commands, on one
// queue or on several.

#ifndef QLORA_COMPILER_SUPPORT_LIVENESS_H
#define QLORA_COMPILER_SUPPORT_LIVENESS_H

#include <cstdint>
#include <span>
#include <vector>

#include "compiler/Support/QueueOrder.h"

namespace qlora {

/// Values as in enum qlora_access (runtime/ABI/module.h).
enum class BufferAccess : uint8_t { Read = 1, Write = 2, ReadWrite = 3 };

struct BufferUse {
  uint32_t buffer = 0;
  BufferAccess access = BufferAccess::Read;
};

/// Positions from `first` to `last`, both included; -1 where none uses it.
struct BufferLife {
  int64_t first = -1;
  int64_t last = -1;
  /// The first command that reads it before any command wrote it; -1: none.
  int64_t readBeforeWrite = -1;

  bool isUsed() const { return first >= 0; }
};

/// A buffer that is no view of another.
inline constexpr uint32_t kNotAView = 0xffffffffu;

/// The life of every buffer. `commands[i]` are the buffers that command i
/// uses. `viewOf[b]` is the buffer that b is a part of (itself perhaps a
/// view), or kNotAView. Parts are not told apart: a use of a view is a use of
/// its source and of every other view of it, so all of them have one life,
/// and a write of one part counts as written for all. With several queues
/// `spans[i]` is when command i may run (spansBeside), and lives are in its
/// positions: buffers whose lives share none may share memory.
std::vector<BufferLife>
computeLiveness(std::span<const std::vector<BufferUse>> commands,
                std::span<const uint32_t> viewOf,
                std::span<const CommandSpan> spans = {});

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_LIVENESS_H
