// SPDX-License-Identifier: MIT

// Queries on the ops of a program.entry, for the passes over it.

#ifndef QLORA_COMPILER_SCHEDULE_COMMANDS_H
#define QLORA_COMPILER_SCHEDULE_COMMANDS_H

#include "dialects/Program/Program.h"

#include "runtime/ABI/module.h"
#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// Returns the commands in order: all ops except buffers, views and bindings.
llvm::SmallVector<mlir::Operation *> commandsOf(program::EntryOp entry);

/// Returns one more than the entry's largest event number.
uint32_t eventCountOf(program::EntryOp entry);

/// Returns the enum qlora_queue value of the queue that runs a command.
unsigned queueOf(mlir::Operation *command);

/// Returns the program.buffer below any chain of views.
program::BufferOp rootOf(mlir::Value buffer);

/// A buffer that a command uses, and how the command uses it.
struct BufferAccess {
  mlir::Value buffer;
  qlora_access access;
};
llvm::SmallVector<BufferAccess> accessesOf(mlir::Operation *command);
/// Returns the buffers that the command may write.
llvm::SmallVector<mlir::Value> buffersWritten(mlir::Operation *command);

/// Returns each activation buffer into which a weight is gathered, with the
/// position of the last command that fills it. A weight is gathered from fsdp
/// shards or host memory, possibly through another activation buffer.
llvm::DenseMap<mlir::Operation *, size_t>
gatheredBuffers(llvm::ArrayRef<mlir::Operation *> commands);

/// Byte range of a buffer: in its arena, or in a program.buffer that has no
/// offset yet. The range of a sharded buffer spans the shards of all ranks.
struct ByteRange {
  mlir::Operation *unplaced = nullptr; ///< the program.buffer without offset
  program::Arena arena;
  uint64_t offset = 0, bytes = 0;

  bool overlaps(const ByteRange &other) const {
    return unplaced == other.unplaced && arena == other.arena &&
           offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};
ByteRange rangeOf(mlir::Value buffer);
/// Returns the bytes of this rank's shard of `buffer`, or of all of `buffer`.
uint64_t ownBytes(mlir::Value buffer);

/// Returns the dtypes and constants of a launch of library op `op`. Rows of
/// Kernels.def accept or refuse a launch based on this request. Absent operands
/// have no dtype.
KernelRequest requestOf(program::LaunchOp launch, const KernelOp *op);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_COMMANDS_H
