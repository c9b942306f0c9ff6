// SPDX-License-Identifier: MIT

// The buffers of an entry and when each of them lives: what plan-memory packs
// and the report draws.

#ifndef QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H
#define QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H

#include "dialects/Program/Program.h"

#include "mlir/IR/BuiltinOps.h"

namespace qlora {

/// Positions among commandsOf(entry), both included: the life begins no later
/// than the first command that may use the buffer beside the compute queue, and
/// ends no earlier than the last (spansBeside, QueueOrder.h). Buffers whose
/// lives share no position may share memory.
struct BufferLife {
  program::BufferOp buffer;
  int64_t first = 0, last = 0;
};

/// Of those that a command uses, of all arenas, in the order of their first
/// use. A use of a part is one of the whole.
llvm::SmallVector<BufferLife> livesOf(program::EntryOp entry);

/// The `count` largest of the activation arena, the largest first.
llvm::SmallVector<program::BufferOp> largestBuffers(program::EntryOp entry,
                                                    size_t count);

/// Bytes of all arenas of a planned program: what a rank allocates. Host memory
/// of a card's rank is not counted.
int64_t plannedBytes(mlir::ModuleOp program);
/// And of that: pinned, for itself alone.
int64_t plannedHostBytes(mlir::ModuleOp program);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_ENTRYBUFFERS_H
