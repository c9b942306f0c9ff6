// SPDX-License-Identifier: MIT

// Weights that can be in host memory.

#ifndef QLORA_COMPILER_GRAPH_HOSTTABLES_H
#define QLORA_COMPILER_GRAPH_HOSTTABLES_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringSet.h"

namespace qlora {

/// Returns true if `use` is an operand of which a kernel reads single rows.
bool isReadByRows(mlir::OpOperand &use);

/// Returns parameters of which an op of a step reads single rows.
llvm::StringSet<> readByRows(mlir::ModuleOp module);

/// Returns parameters of which all ops of all steps read only single rows (`@`
/// in Kernels.def).
llvm::StringSet<> hostTables(mlir::ModuleOp module);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_HOSTTABLES_H
