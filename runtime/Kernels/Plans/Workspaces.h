// SPDX-License-Identifier: MIT

// How the CPU kernels lay out their workspaces: the structs that the rows'
// workspaceBytes and the kernels both take the parts from.

#ifndef QLORA_RUNTIME_KERNELS_PLANS_WORKSPACES_H
#define QLORA_RUNTIME_KERNELS_PLANS_WORKSPACES_H

#include <algorithm>
#include <compare>

#include "runtime/Kernels/Plans/Plans.h"

namespace qlora::plans {

/// Partial sums that column_sum, and clip_norm and length, always make, whatever
/// the number of threads.
inline constexpr int64_t kColumnSumPartials = 16;
inline constexpr int64_t kClipNormPartials = 256;

/// A part that holds a matrix without gaps.
inline Size packed(qlora_dtype dtype, int64_t rows, int64_t columns) {
  return matrixBytes(dtype, rows, columns, columns);
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
  auto operator<=>(const GemmProblem &) const = default;

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
  Part a = {}, b = {}, c = {};
  uint64_t bytes = 0;
  static GemmTile of(const GemmProblem &problem);
};

/// oneDNN uses matrix tiles (AMX) from this depth on.
inline constexpr int64_t kLeastTileDepth = 32;

/// Dense bf16 copies for a bf16 product (of operands with gaps, and of f32
/// operands that may be rounded), then the library's own scratch. With
/// `fillsTiles`, a depth below kLeastTileDepth is one of zeros up to it; a
/// workspace has room for that, whatever CPU it is for.
struct GemmCopies {
  Part a, b, c;
  uint64_t bytes = 0; ///< of all; the library's scratch follows
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
///
/// grouped_matmul has the panels of each group's matrix one after the other, and
/// multiplies as many rows at a time as a group has, by products of some heights.
struct PanelPlan {
  bool isForward;
  int64_t groups = 1;
  int64_t m, n, k;       ///< c[m,n] and the depth
  int64_t columns, rows; ///< of a panel; rows of one product
  qlora_dtype type;      ///< of a and of what is decoded
  float alpha;
  Part decoded, sum, scratch; ///< of a slot
  uint64_t slotBytes = 0;
  Part dense;
  Size total = 0;
  static PanelPlan of(const KernelRequest &request);
  int64_t panels() const { return (n + columns - 1) / columns; }
  /// Tasks at the same time, at most.
  int64_t slots() const { return std::min(panels() * groups, kGemmSlots); }
  /// rows x columns of c, from dense rows of a, into dense f32.
  GemmProblem product(int64_t rows, int64_t columns) const;
};

/// int8_matmul: all rows of a are rounded to whole numbers first, which are
/// widened to i16 for the sake of the instruction that multiplies them, with
/// zeros up to whole tiles. Then a task has a panel of W's rows, widened too.
struct Int8Plan {
  static constexpr int64_t kTile = 4;      ///< rows of both sides of a product
  static constexpr int64_t kDepthUnit = 32;
  static constexpr int64_t kRows = 16;     ///< of c that are finished together
  int64_t m, n, k;
  int64_t depth;   ///< k with its zeros
  int64_t columns; ///< of c in a panel, a multiple of kTile
  Part codes;      ///< i16 [m with zeros, depth]
  Part scales;     ///< f32 [m]
  Part marks;      ///< u8 [k]: of columns that are left out
  Part outliers;   ///< i32 [k]: their numbers
  // Of each slot: a row of a, or what follows.
  Part row;    ///< f32 [k]
  Part panel;  ///< i16 [columns, depth]
  Part sums;   ///< i32 [kRows, columns]
  Part lines;  ///< f32 [2 + kRows, columns]: scales, numbers, c's rows
  uint64_t slotBytes = 0;
  Part slots;
  Size total = 0;
  static Int8Plan of(const KernelRequest &request);
  int64_t panels() const { return (n + columns - 1) / columns; }
};

// Attention -------------------------------------------------------------------

/// Queries or keys that are looked at together.
inline constexpr int64_t kAttentionBlock = 128;
/// More than this is not spent on gradients that heads of keys share.
inline constexpr int64_t kMostAttentionPartials = 32 << 20; // bytes

/// The workspace: slots, each the scratch of one concurrent task. Rows of other
/// types than f32 are gathered as bf16 without gaps, or widened, whichever is
/// multiplied.
struct AttentionScratch {
  int64_t block; ///< min(length, kAttentionBlock)
  // Of each slot.
  Part scores;                ///< f32 [block, block]
  Part rowStates;             ///< f32 [5, block]
  Part sum;                   ///< f32 [block, dim]
  Part queries, keys, values; ///< gathered rows
  Part narrowScores;          ///< bf16: the left side of a product
  Part library;               ///< bf16: of a product
  // Of the gradient only.
  Part scoreGradients, outGradients, outputs;
  Part slopes; ///< of a cap, f32 [block, block]
  Part keyGradients, valueGradients; ///< of all keys of a head
  uint64_t slotBytes = 0;

  Part slots;
  /// The gradient, where heads of keys are too few for all slots: the heads of
  /// queries that share one are tasks of their own, and the gradients of its
  /// keys and values are summed up afterwards. f32 [batch, heads, 2, length,
  /// dim]; absent: one task per head of keys.
  Part partials;
  Size total = 0;

  static AttentionScratch of(const KernelRequest &request);
};

// Head and loss ---------------------------------------------------------------
//
// How head_loss, head_loss_grad and head_part cut their work on the CPU, and
// their workspace.
//
// Labelled rows of a chunk are gathered and cut into blocks, the vocabulary
// into panels of words. A task is a block of rows with a range of panels: it
// computes the logits of one panel after the other, keeps of them for each row
// a running maximum and the sum of exponentials below it, and adds the
// exponentials' product with the panel to the row's gradient, scaled anew
// where the maximum grew (the online softmax of Milakov and Gimelshein,
// arXiv:1805.02867, as FlashAttention does for keys, arXiv:2205.14135). So
// logits never leave a core's cache, and no memory grows with the vocabulary.
// What the tasks of a block found is then merged. The number of ranges follows
// from the number of rows only: bits do not depend on threads.

/// Rows of a block, at most, and words of a panel: together their logits fit
/// into the cache next to a core, and packing a panel is cheap beside its
/// products.
inline constexpr int64_t kHeadBlockRows = 256;
inline constexpr int64_t kHeadPanelWords = 256;
/// Tasks that a chunk of few rows is cut into.
inline constexpr int64_t kHeadTasks = 16;

/// What a task found of a row.
struct HeadRowState {
  double sum;    ///< of e^(logit - maximum)
  float maximum; ///< of the logits
  float target;  ///< logit of the target; 0 where another task has it
  int64_t best;  ///< first word with the maximum
};

/// The words that an op of the head multiplies with: the rows of w.
int64_t headWords(const KernelRequest &request);
/// Whether the gradient of hidden rows is asked for.
bool hasHeadGradient(const KernelRequest &request);
/// Whether that of words is.
bool hasHeadWeightGradient(const KernelRequest &request);

struct HeadPlan {
  int64_t chunkRows, hidden, vocab; ///< vocab: rows of w
  qlora_dtype weightType;
  /// Of hidden rows, words and exponentials in the products: bf16 where both
  /// operands are, else f32.
  qlora_dtype productType;
  bool hasGradient, hasWeightGradient;
  int64_t blockRows, panelWords;
  float cap; ///< of logits; 0: none

  // Parts of the workspace.
  Part rowNumbers, rowLosses; ///< i32, f64 [chunkRows]
  Part logSums;   ///< f64 [chunkRows]: log of the sum of exponentials
  Part gathered;  ///< hidden [blocks * blockRows, hidden]
  Part states;    ///< HeadRowState [tasks, blockRows]
  Part gradients; ///< f32 [tasks, blockRows, hidden]
  Part slots;     ///< of slotBytes each
  Size total = 0;
  // Of each slot.
  Part rowValues; ///< f32 [3, blockRows]
  Part logits;    ///< f32 [blockRows, panelWords]
  Part narrow;    ///< the same in productType, where that is not f32
  Part slopes;    ///< of a cap, as logits
  Part words;     ///< a panel in productType, where w is of another type
  Part scratch;   ///< of a product
  uint64_t slotBytes = 0;

  static HeadPlan of(const KernelRequest &request);

  /// Panels of the first `words` rows of w.
  int64_t panels(int64_t words) const {
    return (words + panelWords - 1) / panelWords;
  }
  int64_t blocks(int64_t rows) const {
    return (rows + blockRows - 1) / blockRows;
  }
  /// Ranges of panels, each a task for every block.
  int64_t ranges(int64_t blockCount) const {
    return std::clamp<int64_t>(kHeadTasks / blockCount, 1, panels(vocab));
  }
  /// Logits of `rows` rows for `count` words.
  GemmProblem logitsProduct(int64_t rows, int64_t count) const;
  /// Adds to the gradient of hidden rows.
  GemmProblem hiddenGradientProduct(int64_t rows, int64_t count) const;
  /// Adds to the gradient of words.
  GemmProblem weightGradientProduct(int64_t rows, int64_t count) const;

private:
  Size productScratch() const;
};

/// head_merge, on the CPU.
struct HeadMergePlan {
  Part losses; ///< f64, of the shard's rows
  Size total = 0;
  static HeadMergePlan of(const KernelRequest &request);
};

} // namespace qlora::plans

#endif // QLORA_RUNTIME_KERNELS_PLANS_WORKSPACES_H
