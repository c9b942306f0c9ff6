// SPDX-License-Identifier: MIT

// Weights that can be in host memory.

#ifndef QLORA_COMPILER_PLACE_HOSTTABLES_H
#define QLORA_COMPILER_PLACE_HOSTTABLES_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringSet.h"

namespace qlora {

/// Returns true if the op's kernel reads only single rows of operand `use`.
bool isReadByRows(mlir::OpOperand &use);

/// Returns the parameters that some op of a step reads by single rows.
llvm::StringSet<> readByRows(mlir::ModuleOp module);

/// Returns the parameters that are read only by single rows (`@` in
/// Kernels.def), in all steps.
llvm::StringSet<> hostTables(mlir::ModuleOp module);

} // namespace qlora

#endif // QLORA_COMPILER_PLACE_HOSTTABLES_H
