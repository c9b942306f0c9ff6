// SPDX-License-Identifier: MIT

// What the passes over program.entry ask of its ops.

#ifndef QLORA_COMPILER_SCHEDULE_COMMANDS_H
#define QLORA_COMPILER_SCHEDULE_COMMANDS_H

#include "dialects/Program/Program.h"

#include "runtime/ABI/module.h"
#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// The commands of an entry in order: its ops but buffers, views and bindings.
llvm::SmallVector<mlir::Operation *> commandsOf(program::EntryOp entry);

/// One more than the largest number of its events.
uint32_t eventCountOf(program::EntryOp entry);

/// enum qlora_queue that a command runs on.
unsigned queueOf(mlir::Operation *command);

/// The program.buffer that a view of views is a part of.
program::BufferOp rootOf(mlir::Value buffer);

/// A buffer of a command, and what that does with it.
struct BufferAccess {
  mlir::Value buffer;
  qlora_access access;
};
llvm::SmallVector<BufferAccess> accessesOf(mlir::Operation *command);
/// Those that it may write.
llvm::SmallVector<mlir::Value> buffersWritten(mlir::Operation *command);

/// The buffers that weights are gathered into, from the pieces of ranks or from
/// host memory, or from there by way of a card's own, and the positions of the
/// commands that do.
llvm::DenseMap<mlir::Operation *, size_t>
gatheredBuffers(llvm::ArrayRef<mlir::Operation *> commands);

/// The bytes of a buffer: of an arena, or of a program.buffer that has no place
/// in one yet. Of one in pieces, those of all ranks' pieces.
struct ByteRange {
  mlir::Operation *unplaced = nullptr;
  program::Arena arena;
  uint64_t offset = 0, bytes = 0;

  bool isIn(const ByteRange &other) const {
    return unplaced == other.unplaced && arena == other.arena;
  }
  bool overlaps(const ByteRange &other) const {
    return isIn(other) && offset < other.offset + other.bytes &&
           other.offset < offset + bytes;
  }
};
ByteRange rangeOf(mlir::Value buffer);
/// Of these, what one rank has.
uint64_t ownBytes(mlir::Value buffer);

/// A launch of library op `op` as Kernels.def sees it; absent operands have no
/// dtype.
KernelRequest requestOf(program::LaunchOp launch, const KernelOp *op);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_COMMANDS_H
