// SPDX-License-Identifier: MIT

// What the passes over program.entry ask of its ops.

#ifndef QLORA_COMPILER_SCHEDULE_COMMANDS_H
#define QLORA_COMPILER_SCHEDULE_COMMANDS_H

#include "dialects/Program/Program.h"

#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// The commands of an entry in order: its ops but buffers, views and bindings.
llvm::SmallVector<mlir::Operation *> commandsOf(program::EntryOp entry);

/// enum qlora_queue that a command runs on.
unsigned queueOf(mlir::Operation *command);

/// The program.buffer that a view of views is a part of.
program::BufferOp rootOf(mlir::Value buffer);

/// The buffers that a command may write.
llvm::SmallVector<mlir::Value> buffersWritten(mlir::Operation *command);

/// A launch of library op `op` as Kernels.def sees it; absent operands have no
/// dtype.
KernelRequest requestOf(program::LaunchOp launch, const KernelOp *op);

} // namespace qlora

#endif // QLORA_COMPILER_SCHEDULE_COMMANDS_H
