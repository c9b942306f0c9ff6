// SPDX-License-Identifier: MIT

// The column loops of a kernel. By default, each loop recomputes the row values
// that it needs from the operands, so the plan only assigns ops to loops.
//
//   %s = model.row_sum %x2        loop 0: sum of x * x
//   %d = model.row_sum %xw        loop 0: sum of x * w, ready at the same time
//   %e = model.row_sum %y         loop 1: y needs s
//   yield %z                      loop 2: stores z
//
// Loop k computes the reductions that depend on a chain of k other reductions.
// The last loop stores the results. A value that is expensive (exp, sin,
// division, ...) and that a later loop needs again is kept in an array with one
// float per column. A loop with `model.row_rotate` handles the two exchanged
// columns c and c + C/2 in one iteration, to read each operand only once. If
// only `width` columns rotate, they are paired as c and c + width/2, and the
// remaining columns form pairs of their own.

#ifndef QLORA_COMPILER_CODEGEN_ROWPLAN_H
#define QLORA_COMPILER_CODEGEN_ROWPLAN_H

#include "dialects/Model/Model.h"
#include "llvm/ADT/MapVector.h"

namespace qlora {

struct RowLoop {
  /// Ops with the trait RowReduction. Empty in the loop that stores results.
  llvm::SmallVector<mlir::Operation *> reductions;
  int64_t turned = 0; ///< columns that rotations exchange; 0: no rotation
};

struct RowPlan {
  llvm::SmallVector<RowLoop> loops; ///< the last one stores the results
  /// Values kept in an array, with the index of the loop that fills it.
  llvm::MapVector<mlir::Value, unsigned> kept;
};

/// True for a value with one number per column.
inline bool isRow(mlir::Value value) {
  return llvm::isa<mlir::RankedTensorType>(value.getType());
}

/// Plans the body of a kernel that may keep up to `maxArrays` values in arrays.
/// If `areQuick` (KernelSpelling::hasQuickFunctions), sigmoids, inverse roots
/// and random numbers are always recomputed. Ignores values that no yielded
/// value depends on.
RowPlan planRows(mlir::Block &body, int64_t maxArrays, bool areQuick);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_ROWPLAN_H
