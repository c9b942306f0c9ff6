// SPDX-License-Identifier: MIT

// Weights that may live in host memory.

#ifndef QLORA_COMPILER_GRAPH_HOSTTABLES_H
#define QLORA_COMPILER_GRAPH_HOSTTABLES_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringSet.h"

namespace qlora {

/// True where `use` is the operand of a kernel that reads single rows of it.
bool isReadByRows(mlir::OpOperand &use);

/// Parameters of which an op of a step reads single rows.
llvm::StringSet<> readByRows(mlir::ModuleOp module);

/// Parameters of which no op of a step reads more than single rows (`@` in
/// Kernels.def).
llvm::StringSet<> hostTables(mlir::ModuleOp module);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_HOSTTABLES_H
