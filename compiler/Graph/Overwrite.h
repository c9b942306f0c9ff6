// SPDX-License-Identifier: MIT

// Results that may take over the memory of an operand.
//
//   %dg, %du = model.rows(%g, %u, %ds)     // if nothing reads %g and %u again
//
// writes dg where g was and du where u was: three wide tensors are alive in
// place of five.

#ifndef QLORA_COMPILER_GRAPH_OVERWRITE_H
#define QLORA_COMPILER_GRAPH_OVERWRITE_H

#include "dialects/Model/Model.h"

namespace qlora {

/// A result and an operand whose memory it may have.
struct Overwrite {
  mlir::Value operand;
  mlir::Value result;
};

/// What `op` could write over, results in order and for each the operands in
/// order; the first operand that dies at `op` and is not taken yet is it. For
/// a library op that is the operand which its only result continues; for a row
/// op every operand of the result's type that is read by whole rows, since a
/// generated kernel loads all that it needs of a column (of two, where rows
/// are rotated) before it stores there. Left out is memory that is not the
/// value's own: weights, inputs, and parts of something larger.
llvm::SmallVector<Overwrite> overwritesOf(mlir::Operation *op);

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_OVERWRITE_H
