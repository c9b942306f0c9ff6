// SPDX-License-Identifier: MIT

// Between the tokens of a rank and those of all, for shard-context: of lines
// [B, T, C] each of N ranks has T / N tokens, or C / N columns.

#ifndef QLORA_COMPILER_GRAPH_LINEEXCHANGE_H
#define QLORA_COMPILER_GRAPH_LINEEXCHANGE_H

#include "dialects/Model/Model.h"

namespace qlora {

struct LineExchange {
  int64_t ranks, lines, length;

  int64_t ownLength() const { return length / ranks; }

  // Each makes ops at the builder's position.

  /// From [B, T / N] to [B, T], the same on all ranks.
  mlir::Value wholeLines(mlir::OpBuilder &b, mlir::Location loc,
                         mlir::Value own) const;
  /// From [B, T / N, C] to [B, T, C / N].
  mlir::Value toAllTokens(mlir::OpBuilder &b, mlir::Location loc,
                          mlir::Value own) const;
  /// And back.
  mlir::Value toOwnTokens(mlir::OpBuilder &b, mlir::Location loc,
                          mlir::Value all) const;
};

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_LINEEXCHANGE_H
