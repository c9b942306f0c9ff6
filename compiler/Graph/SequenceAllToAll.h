// SPDX-License-Identifier: MIT

// Exchanges tokens for columns between cp ranks, for shard-context. Each of N
// ranks has T / N tokens or C / N columns of sequences [B, T, C].

#ifndef QLORA_COMPILER_GRAPH_SEQUENCEALLTOALL_H
#define QLORA_COMPILER_GRAPH_SEQUENCEALLTOALL_H

#include "dialects/Model/Model.h"

namespace qlora {

struct SequenceAllToAll {
  int64_t ranks, lines, length;

  int64_t ownLength() const { return length / ranks; }

  // Each function creates ops at the builder's position.

  /// Gathers [B, T / N] to [B, T], equal on all ranks.
  mlir::Value wholeLines(mlir::OpBuilder &b, mlir::Location loc,
                         mlir::Value own) const;
  /// Exchanges [B, T / N, C] to [B, T, C / N].
  mlir::Value toAllTokens(mlir::OpBuilder &b, mlir::Location loc,
                          mlir::Value own) const;
  /// Exchanges [B, T, C / N] to [B, T / N, C].
  mlir::Value toOwnTokens(mlir::OpBuilder &b, mlir::Location loc,
                          mlir::Value all) const;
};

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_SEQUENCEALLTOALL_H
