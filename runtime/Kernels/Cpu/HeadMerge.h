// SPDX-License-Identifier: MIT

// The operands of head_merge by name, and the check of their data.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADMERGE_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADMERGE_H

#include "runtime/Kernels/Cpu/HeadOperands.h"
#include "runtime/Kernels/Cpu/HeadStates.h"

namespace qlora {

struct HeadMergeShape {
  int64_t rows, hidden, vocab, piece, shards, lddh, lines, own;
  float cap;
  qlora_dtype weightType, dhiddenType;
  TokenLoss loss;

  static HeadMergeShape of(const KernelRequest &request);
  /// Returns the first of a rank's `own` rows; 0 if the rank has all rows.
  int64_t firstOf(int64_t shard) const { return own == rows ? 0 : shard * own; }
  /// Returns the index of the element of `loss` that a row of the rank adds to.
  int64_t lineOf(int64_t row) const { return row / (own / lines); }
};

/// Buffers by name; null if the launch lacks a buffer.
struct HeadMergeOperands {
  const float *states;
  const int32_t *targets;
  float *loss, *count;
  int32_t *correct;
  float *gradient;
  const void *w;
  void *dhidden;
  int64_t shard;
  HeadPiece piece; ///< this rank's shard

  /// Returns an internal error if the shard or a target is out of range.
  static StatusOr<HeadMergeOperands> of(const LibraryKernelArgs &args,
                                        const HeadMergeShape &shape);

  HeadRowState stateOf(const HeadMergeShape &shape, int64_t shardOfState,
                       int64_t row) const {
    return loadState(states, shardOfState * shape.rows + row,
                     shape.loss.smoothing);
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADMERGE_H
