// SPDX-License-Identifier: MIT

// Common code of attention and attention_grad: extents, which keys a query
// sees, and offsets of rows.

#ifndef QLORA_RUNTIME_KERNELS_CPU_ATTENTIONSHAPE_H
#define QLORA_RUNTIME_KERNELS_CPU_ATTENTIONSHAPE_H

#include <algorithm>
#include <vector>

#include "runtime/Kernels/Cpu/BlockProducts.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora {

/// Operand indices of attention (kQ to kLse, kSinks) and of attention_grad (kQ
/// to kDV). In both ops the workspace is the last operand.
enum AttentionOperand {
  kQ,
  kK,
  kV,
  kSegments,
  kOut,
  kLse,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kSinks = kDOut,
};

/// Queries or keys [first, first + count) of one sequence.
struct AttentionBlock {
  int64_t first, count;
  int64_t last() const { return first + count - 1; }
};

struct AttentionShape {
  int64_t batch, length, heads, keyHeads, dim, window, slots;
  float scale, cap;
  qlora_dtype dtype;

  static AttentionShape of(const KernelRequest &r) {
    return {
        r.constant("batch"), r.constant("length"),
        r.constant("heads"), r.constant("kv_heads"),
        r.constant("dim"),   r.constant("window"),
        r.constant("slots"), static_cast<float>(r.constantAsDouble("scale")),
        static_cast<float>(r.constantAsDouble("cap")), r.type("q")};
  }

  int64_t group() const { return heads / keyHeads; }

  /// Returns the first key in a query's window.
  int64_t firstKey(int64_t query) const {
    return window == 0 ? 0 : std::max<int64_t>(0, query - window + 1);
  }
  /// Whether `query` sees `key`. `segments`: segment ids by token, or null.
  bool sees(const int32_t *segments, int64_t query, int64_t key) const {
    if (key > query || key < firstKey(query))
      return false;
    return !segments ||
           (segments[query] != 0 && segments[query] == segments[key]);
  }
  /// Whether any query of a block may see any key of another block.
  bool mayMeet(const int32_t *segments, AttentionBlock queries,
               AttentionBlock keys) const;
  /// Whether every query of a block sees every key of another block.
  bool allMeet(const int32_t *segments, AttentionBlock queries,
               AttentionBlock keys) const;

  AttentionBlock blockAt(int64_t index, int64_t block) const {
    return {index * block, std::min(block, length - index * block)};
  }

  /// Returns a head's rows of a [B, T, heads * dim] matrix with stride ld, as
  /// `products` needs them: in place, or gathered or widened into `scratch`.
  RowView rows(const BlockProducts &products, const void *matrix, int64_t ld,
               int64_t batchRow, int64_t head, AttentionBlock block,
               float *scratch) const;

  /// Returns all block sizes: `block`, and the size of the last block if it is
  /// smaller.
  std::vector<int64_t> blockSizes(int64_t block) const;

  /// Returns the segment ids of a sequence; null if the launch has none.
  const int32_t *segmentsOf(const LibraryKernelArgs &args,
                            int64_t batchRow) const {
    const auto *segments = bufferOf<const int32_t>(args, kSegments);
    return segments ? segments + batchRow * length : nullptr;
  }
  /// Returns the log-sum-exps of a sequence and a head.
  float *lseOf(const LibraryKernelArgs &args, int64_t batchRow,
               int64_t head) const {
    return bufferOf<float>(args, kLse) + (batchRow * heads + head) * length;
  }
  /// Stores `from`, rounded, as the row of a sequence, head and token.
  void storeRow(const float *from, void *matrix, int64_t ld, int64_t batchRow,
                int64_t head, int64_t token) const {
    narrow(from, dtype,
           elementAt(matrix, dtype, rowOffset(ld, batchRow, head, token)), dim);
  }
  /// Returns the index of a row's first element in a matrix with stride `ld`; a
  /// row is a token of one sequence and head.
  int64_t rowOffset(int64_t ld, int64_t batchRow, int64_t head,
                    int64_t token) const {
    return (batchRow * length + token) * ld + head * dim;
  }
};

/// Returns buffer `part` of the scratch `slot`, for dense bf16 values. Returns
/// null if the operands of `products` are f32.
inline uint16_t *narrowValues(const BlockProducts &products, plans::Part part,
                              void *slot) {
  return products.operandType() == QLORA_DTYPE_BF16 ? part.in<uint16_t>(slot)
                                                    : nullptr;
}

/// Returns a view for BlockProducts: of `narrow` if not null, else of `values`.
inline RowView denseRows(const float *values, const uint16_t *narrow,
                         int64_t columns) {
  return {narrow ? static_cast<const void *>(narrow) : values, columns};
}

/// Sets scores [queries.count, keys.count] of invisible keys to -infinity.
void maskScores(const AttentionShape &shape, const int32_t *segments,
                AttentionBlock queries, AttentionBlock keys, float *scores);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_ATTENTIONSHAPE_H
