// SPDX-License-Identifier: MIT

// The operands of head_merge by name, and the check of what is data in them.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADMERGE_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADMERGE_H

#include "runtime/Kernels/Cpu/HeadOperands.h"
#include "runtime/Kernels/Cpu/HeadStates.h"

namespace qlora {

struct HeadMergeShape {
  int64_t rows, hidden, vocab, piece, shards, lddh, lines, own;
  float cap;
  qlora_dtype weightType, dhiddenType;

  static HeadMergeShape of(const KernelRequest &request);
  /// The first of the `own` rows of a rank, which may be those of all.
  int64_t firstOf(int64_t shard) const { return own == rows ? 0 : shard * own; }
  /// Which sum a row of the rank is in.
  int64_t lineOf(int64_t row) const { return row / (own / lines); }
};

/// Buffers by name; null where the launch has none.
struct HeadMergeOperands {
  const float *states;
  const int32_t *targets;
  float *loss, *count;
  int32_t *correct;
  float *gradient;
  const void *w;
  void *dhidden;
  int64_t shard;
  HeadPiece piece; ///< of this rank

  /// A shard that is none, or a target that is no word, is an internal error.
  static StatusOr<HeadMergeOperands> of(const LibraryKernelArgs &args,
                                        const HeadMergeShape &shape);

  HeadRowState stateOf(const HeadMergeShape &shape, int64_t shardOfState,
                       int64_t row) const {
    return loadState(states, shardOfState * shape.rows + row);
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADMERGE_H
