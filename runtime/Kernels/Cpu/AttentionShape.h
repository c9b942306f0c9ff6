// SPDX-License-Identifier: MIT

// What both attentions know of a launch: extents, which key a query sees, and
// where its rows are.

#ifndef QLORA_RUNTIME_KERNELS_CPU_ATTENTIONSHAPE_H
#define QLORA_RUNTIME_KERNELS_CPU_ATTENTIONSHAPE_H

#include <algorithm>
#include <vector>

#include "runtime/Kernels/Cpu/BlockProducts.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora {

/// Operands of attention (the first six, then sinks) and of attention_grad; a
/// workspace is the last.
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

/// Queries or keys [first, first + count) of one row of the batch.
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

  /// The first key that a query's window reaches.
  int64_t firstKey(int64_t query) const {
    return window == 0 ? 0 : std::max<int64_t>(0, query - window + 1);
  }
  /// Whether `query` sees `key`; `segments` of this row of the batch, or null.
  bool sees(const int32_t *segments, int64_t query, int64_t key) const {
    if (key > query || key < firstKey(query))
      return false;
    return !segments ||
           (segments[query] != 0 && segments[query] == segments[key]);
  }
  /// Whether some query of a block may see some key of another.
  bool mayMeet(const int32_t *segments, AttentionBlock queries,
               AttentionBlock keys) const;
  /// Whether every query of a block sees every key of another.
  bool allMeet(const int32_t *segments, AttentionBlock queries,
               AttentionBlock keys) const;

  AttentionBlock blockAt(int64_t index, int64_t block) const {
    return {index * block, std::min(block, length - index * block)};
  }

  /// Rows of head `head` of a [B, T, heads * dim] matrix with stride ld, as
  /// `products` take them: in place, gathered into `scratch`, or widened.
  RowView rows(const BlockProducts &products, const void *matrix, int64_t ld,
               int64_t batchRow, int64_t head, AttentionBlock block,
               float *scratch) const;

  /// The numbers of queries or of keys that blocks have: one, or two.
  std::vector<int64_t> blockSizes(int64_t block) const;

  /// The segments of a row of the batch; null without segments.
  const int32_t *segmentsOf(const LibraryKernelArgs &args,
                            int64_t batchRow) const {
    const auto *segments = bufferOf<const int32_t>(args, kSegments);
    return segments ? segments + batchRow * length : nullptr;
  }
  /// The log-sum-exps of a row of the batch and a head.
  float *lseOf(const LibraryKernelArgs &args, int64_t batchRow,
               int64_t head) const {
    return bufferOf<float>(args, kLse) + (batchRow * heads + head) * length;
  }
  /// Writes such a row.
  void storeRow(const float *from, void *matrix, int64_t ld, int64_t batchRow,
                int64_t head, int64_t token) const {
    narrow(from, dtype,
           elementAt(matrix, dtype, rowOffset(ld, batchRow, head, token)), dim);
  }
  /// The element that such a row begins at.
  int64_t rowOffset(int64_t ld, int64_t batchRow, int64_t head,
                    int64_t token) const {
    return (batchRow * length + token) * ld + head * dim;
  }
};

/// Where dense values go that `products` take as bf16: a part of the scratch
/// `slot`; null where they take f32.
inline uint16_t *narrowValues(const BlockProducts &products, plans::Part part,
                              void *slot) {
  return products.operandType() == QLORA_DTYPE_BF16 ? part.in<uint16_t>(slot)
                                                    : nullptr;
}

/// Dense rows, as `products` take them: `narrow` from above, or else `values`.
inline RowView denseRows(const float *values, const uint16_t *narrow,
                         int64_t columns) {
  return {narrow ? static_cast<const void *>(narrow) : values, columns};
}

/// Sets the scores [queries.count, keys.count] of pairs that do not meet to
/// -infinity.
void maskScores(const AttentionShape &shape, const int32_t *segments,
                AttentionBlock queries, AttentionBlock keys, float *scores);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_ATTENTIONSHAPE_H
