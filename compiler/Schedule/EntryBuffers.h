// SPDX-License-Identifier: MIT

// The buffers of an entry and their lifetimes, for plan-memory and the report.

#ifndef QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H
#define QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H

#include "dialects/Program/Program.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Lifetime of a buffer, as positions among commandsOf(entry), both included.
/// Covers all times at which any queue may use the buffer (spansBeside in
/// QueueOrder.h). Buffers whose lifetimes share no position may share memory.
struct BufferLife {
  program::BufferOp buffer;
  int64_t first = 0, last = 0;
};

/// Returns the lifetimes of all buffers that commands use, in every arena, in
/// the order of first use. A use of a view counts as a use of its buffer.
llvm::SmallVector<BufferLife> livesOf(program::EntryOp entry);

/// Returns the `count` largest buffers of the activation arena, largest first.
llvm::SmallVector<program::BufferOp> largestBuffers(program::EntryOp entry,
                                                    size_t count);

/// Returns the bytes of all arenas of a planned program that a rank allocates
/// on its device. Arenas in the host memory of a GPU rank are not counted.
int64_t plannedBytes(mlir::ModuleOp program);
/// Returns the bytes of the arenas that a GPU rank allocates in pinned host
/// memory. Ranks do not share this memory.
int64_t plannedHostBytes(mlir::ModuleOp program);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H
