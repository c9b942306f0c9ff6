// SPDX-License-Identifier: MIT

// How the CPU kernels lay out their workspaces. The rows' workspaceBytes sum
// the sizes stated here, and the kernels cut their workspace by the same
// functions, so that the two cannot drift apart.

#ifndef QLORA_RUNTIME_KERNELS_REQUESTS_WORKSPACES_H
#define QLORA_RUNTIME_KERNELS_REQUESTS_WORKSPACES_H

#include "runtime/Kernels/Requests/Requests.h"

namespace qlora::requests {

/// Partial sums that column_sum and clip_norm always make, whatever the
/// number of threads.
inline constexpr int64_t kColumnSumPartials = 16;
inline constexpr int64_t kClipNormPartials = 256;

/// A part that holds a matrix without gaps.
inline Size packed(qlora_dtype dtype, int64_t rows, int64_t columns) {
  return matrixBytes(dtype, rows, columns, columns).aligned();
}
inline Size largest(Size a, Size b) { return a.bytes() < b.bytes() ? b : a; }

// Matrix products -----------------------------------------------------------

/// c[m,n] := alpha * op(a)[m,k] . op(b)[k,n] + beta * c, as in Kernels.def.
struct GemmProblem {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool transposeA, transposeB;
  qlora_dtype a, b, c;
  float alpha = 1, beta = 0;
  /// An f32 operand beside a bf16 one may be rounded to bf16 (`^` of
  /// Kernels.def).
  bool mayRound = false;

  /// No gaps between rows; a single row has none.
  bool isDenseA() const;
  bool isDenseB() const;
  bool isDenseC() const { return m == 1 || ldc == n; }
  /// Whether bf16 arithmetic does it.
  bool isBF16() const;
};

/// Tasks of a tiled product that run at the same time, at most.
inline constexpr int64_t kGemmSlots = 16;

/// The shape of a tile of c, the depth of one step, and the f32 scratch of a
/// task: pieces of a, b and c, each only where the type is not f32.
struct GemmTile {
  int64_t rows, columns, depth;
  uint64_t aBytes, bBytes, cBytes;
  static GemmTile of(const GemmProblem &problem);
  uint64_t bytes() const { return aBytes + bBytes + cBytes; }
};

/// oneDNN uses matrix tiles (AMX) from this depth on.
inline constexpr int64_t kLeastTileDepth = 32;

/// Dense bf16 copies for a bf16 product (of operands with gaps, and of f32
/// operands that may be rounded), then the library's own scratch. With
/// `fillsTiles`, a depth below kLeastTileDepth is one of zeros up to it; a
/// workspace has room for that, whatever CPU it is for.
struct GemmCopies {
  Size a = 0, b = 0, c = 0;
  int64_t depth; ///< of a and b as they are multiplied
  static GemmCopies of(const GemmProblem &problem, bool fillsTiles);
};

/// Scratch that is enough for either way of computing it.
Size gemmWorkspace(const GemmProblem &problem);
/// The same for one thread, with at most `most` bytes for the library.
Size sequentialGemmWorkspace(const GemmProblem &problem,
                             uint64_t most = 1024 * 1024);

GemmProblem matmulProblem(const KernelRequest &request);

/// panel_matmul: columns of c are cut into panels of `panel_columns`, each a
/// task that one thread does from end to end, in a slot with its scratch:
/// the part of W that the panel is multiplied with, decoded, then some rows of
/// the product in f32, then the scratch of that product. After the slots, a
/// without gaps, where it has some.
struct PanelPlan {
  bool isForward;
  int64_t m, n, k;       ///< c[m,n] and the depth
  int64_t columns, rows; ///< of a panel; rows of one product
  qlora_dtype type;      ///< of a and of what is decoded
  float alpha;
  Size decoded = 0, sum = 0, scratch = 0, dense = 0;
  static PanelPlan of(const KernelRequest &request);
  int64_t panels() const { return (n + columns - 1) / columns; }
  /// Tasks at the same time, at most.
  int64_t slots() const {
    return panels() < kGemmSlots ? panels() : kGemmSlots;
  }
  Size slotBytes() const { return decoded + sum + scratch; }
  Size allSlotsBytes() const { return slotBytes() * Size(slots()); }
  Size total() const { return allSlotsBytes() + dense; }
  /// rows x columns of c, from dense rows of a, into dense f32.
  GemmProblem product(int64_t rows, int64_t columns) const;
};

// Attention -------------------------------------------------------------------

/// Queries or keys that are looked at together.
inline constexpr int64_t kAttentionBlock = 128;
/// More than this is not spent on gradients that heads of keys share.
inline constexpr int64_t kMostAttentionPartials = 32 << 20; // bytes

/// Scratch of one concurrent task: offsets in f32 elements, each part of whole
/// cache lines. Rows of other types than f32 are gathered as bf16 without gaps,
/// or widened, whichever is multiplied.
struct AttentionScratch {
  int64_t block;                              ///< min(length, kAttentionBlock)
  int64_t scores = 0, rowStates = 0, sum = 0; ///< rowStates: 5 for a query
  int64_t queries = 0, keys = 0, values = 0;  ///< gathered rows
  int64_t narrowScores = 0; ///< bf16: the left side of a product
  int64_t library = 0, libraryElements = 0; ///< bf16: of a product
  // Of the gradient only.
  int64_t scoreGradients = 0, outGradients = 0, outputs = 0;
  int64_t keyGradients = 0, valueGradients = 0; ///< of all keys of a head
  int64_t elements = 0;
  /// The gradient, where heads of keys are too few for all slots: the heads of
  /// queries that share one are tasks of their own, and the gradients of its
  /// keys and values are summed up afterwards. After the slots: [batch, heads,
  /// 2, length, dim]; 0 elements: one task per head of keys.
  int64_t partialElements = 0;

  static AttentionScratch of(const KernelRequest &request);
  Size bytes(int64_t slots) const {
    return Size(4) * (Size(slots) * elements + Size(partialElements));
  }
};

} // namespace qlora::requests

#endif // QLORA_RUNTIME_KERNELS_REQUESTS_WORKSPACES_H
