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

/// Maps each activation buffer that a weight is gathered into to the position
/// of the command that fills it last. The weight comes from the ranks' fsdp
/// shards or from host memory, possibly through another such buffer.
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
/// Returns the bytes of `buffer` that one rank holds.
uint64_t ownBytes(mlir::Value buffer);

/// Returns the dtypes and constants of a launch of library op `op`, from which
/// rows of Kernels.def decide whether they accept it. Absent operands have no
/// dtype.
KernelRequest requestOf(program::LaunchOp launch, const KernelOp *op);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_COMMANDS_H
