// SPDX-License-Identifier: MIT

// The column loops of a kernel. A row value is never stored: each loop
// evaluates what it needs from the operands, so the only thing to decide is
// which loop does what.
//
//   %s = model.row_sum %x2        loop 0: sum of x * x
//   %d = model.row_sum %xw        loop 0: sum of x * w, ready at the same time
//   %e = model.row_sum %y         loop 1: y needs s
//   yield %z                      loop 2: stores z
//
// A reduction is in loop k when k reductions follow each other up to it;
// results are stored in the last loop. A value that is expensive (exp, sin,
// division, ...) and needed by a later loop again is kept in an array of one
// row. A loop that meets `model.row_rotate` handles the two columns together
// that it exchanges, c and c + C/2, so that each operand is still read once;
// where only `width` columns turn, c and c + width/2, and then the others by
// two.

#ifndef QLORA_COMPILER_CODEGEN_ROWPLAN_H
#define QLORA_COMPILER_CODEGEN_ROWPLAN_H

#include "dialects/Model/Model.h"
#include "llvm/ADT/MapVector.h"

namespace qlora {

struct RowLoop {
  /// Ops with RowReduction; none: the loop that stores.
  llvm::SmallVector<mlir::Operation *> reductions;
  int64_t turned = 0; ///< the width of its rotations; 0: it has none
};

struct RowPlan {
  llvm::SmallVector<RowLoop> loops; ///< the last one stores the results
  /// Values with an array, and the loop that fills it.
  llvm::MapVector<mlir::Value, unsigned> kept;
};

/// True for a value with one number per column.
inline bool isRow(mlir::Value value) {
  return llvm::isa<mlir::RankedTensorType>(value.getType());
}

/// Plans the body of a kernel that may keep `maxArrays` values, quick functions
/// (KernelSpelling.h) not among them if `areQuick`. Only what the yielded values
/// depend on is planned.
RowPlan planRows(mlir::Block &body, int64_t maxArrays, bool areQuick);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_ROWPLAN_H
