// SPDX-License-Identifier: MIT

// The layouts of the workspaces of CPU kernels, used by the kernels and by
// KernelRow::workspaceBytes().

#ifndef QLORA_RUNTIME_KERNELS_PLANS_WORKSPACES_H
#define QLORA_RUNTIME_KERNELS_PLANS_WORKSPACES_H

#include <algorithm>
#include <compare>

#include "runtime/Kernels/Plans/Plans.h"

namespace qlora::plans {

/// Number of partial sums of column_sum, and of clip_norm and length, whatever
/// the number of threads.
inline constexpr int64_t kColumnSumPartials = 16;
inline constexpr int64_t kClipNormPartials = 256;

/// Bytes of a matrix without gaps.
inline Size packed(qlora_dtype dtype, int64_t rows, int64_t columns) {
  return matrixBytes(dtype, rows, columns, columns);
}
inline Size largest(Size a, Size b) { return a.bytes() < b.bytes() ? b : a; }

// Matmuls ---------------------------------------------------------------------

/// c[m,n] := alpha * op(a)[m,k] . op(b)[k,n] + beta * c, as in Kernels.def.
struct GemmProblem {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool transposeA, transposeB;
  qlora_dtype a, b, c;
  float alpha = 1, beta = 0;
  /// Whether a may be rounded to bf16 if b is bf16, and b if a is bf16 (`^` of
  /// Kernels.def).
  bool mayRound = false;
  auto operator<=>(const GemmProblem &) const = default;

  /// Whether a matrix has no gaps between rows. A single row has no gaps.
  bool isDenseA() const;
  bool isDenseB() const;
  bool isDenseC() const { return m == 1 || ldc == n; }
  /// Whether bf16 arithmetic can compute the matmul.
  bool isBF16() const;
};

/// Maximum number of concurrent tasks of a tiled matmul.
inline constexpr int64_t kGemmSlots = 16;

/// The shape of a tile of c, the depth of one step, and the f32 scratch of a
/// task: tiles of a, b and c. An f32 matrix needs no scratch.
struct GemmTile {
  int64_t rows, columns, depth;
  Part a = {}, b = {}, c = {};
  uint64_t bytes = 0;
  static GemmTile of(const GemmProblem &problem);
};

/// Minimum depth for which oneDNN uses matrix tiles (AMX).
inline constexpr int64_t kLeastTileDepth = 32;

/// Workspace of a bf16 matmul: dense bf16 copies of operands that have gaps or
/// are f32, then the library's scratch. If `fillsTiles`, smaller depths are
/// padded with zeros to kLeastTileDepth; workspaces have space for the padding
/// on any CPU.
struct GemmCopies {
  Part a, b, c;
  uint64_t bytes = 0; ///< size of the copies; scratch follows them
  int64_t depth; ///< padded depth of the matmul
  static GemmCopies of(const GemmProblem &problem, bool fillsTiles);
};

/// Returns the scratch bytes that suffice for both implementations of Gemm.
Size gemmWorkspace(const GemmProblem &problem);
/// Returns the bytes of scratch for one thread, at most `most` for the library.
Size sequentialGemmWorkspace(const GemmProblem &problem,
                             uint64_t most = 1024 * 1024);

GemmProblem matmulProblem(const KernelRequest &request);

/// panel_matmul: columns of c form panels of `panel_columns`. A panel is a task
/// of one thread. A slot is a task's scratch: a decoded range of W, then some
/// rows of the result in f32, then scratch of the matmul. If a has gaps, a copy
/// without gaps follows the slots.
///
/// grouped_matmul has the panels of each group's matrix one after another. It
/// multiplies a group's rows with GEMMs of a few fixed row counts.
struct PanelPlan {
  bool isForward;
  int64_t groups = 1;
  int64_t m, n, k;       ///< c[m,n], and the depth k
  int64_t columns, rows; ///< columns of a panel, rows of one matmul
  qlora_dtype type;      ///< type of a and of the decoded weight
  float alpha;
  Part decoded, sum, scratch; ///< per slot
  uint64_t slotBytes = 0;
  Part dense;
  Size total = 0;
  static PanelPlan of(const KernelRequest &request);
  int64_t panels() const { return (n + columns - 1) / columns; }
  /// Maximum number of concurrent tasks.
  int64_t slots() const { return std::min(panels() * groups, kGemmSlots); }
  /// Returns the matmul that computes [rows, columns] of c in dense f32 from
  /// dense rows of a.
  GemmProblem product(int64_t rows, int64_t columns) const;
};

/// The row `streamed` of matmul and panel_matmul, for few rows and c = a . W^T:
/// a task decodes some rows of W in its core's cache, a few at a time, and
/// multiplies them with all rows of a, which the workspace has in f32.
struct StreamedPlan {
  static constexpr int64_t kMostRows = 16; ///< of a
  static constexpr int64_t kLanes = 32;    ///< partial sums of a dot product
  static constexpr int64_t kTile = 4;      ///< rows of W multiplied together
  static constexpr int64_t kMostOutputs = 128;
  int64_t m, n, k;
  int64_t depth;   ///< k, padded with zeros to a multiple of kLanes
  int64_t outputs; ///< rows of W, and columns of c, of a task
  qlora_dtype rowType;    ///< a is rounded to it
  qlora_dtype weightType; ///< W is decoded to it
  Part rows;       ///< f32 [m, depth]
  Size total = 0;
  static StreamedPlan of(const KernelRequest &request);
  int64_t tasks() const { return (n + outputs - 1) / outputs; }
};
/// Returns whether the CPU row `streamed` accepts a request of matmul or
/// panel_matmul.
bool isStreamed(const KernelRequest &request);

/// int8_matmul: all rows of a are first rounded to integers, then widened to
/// i16 for the multiply-add instruction, and padded with zeros to whole tiles.
/// Then each task widens a panel of W's rows and multiplies with it.
struct Int8Plan {
  static constexpr int64_t kTile = 4;      ///< rows of a, and of W, in a tile
  static constexpr int64_t kDepthUnit = 32;
  static constexpr int64_t kRows = 16;     ///< rows of c finished together
  int64_t m, n, k;
  int64_t depth;   ///< k padded with zeros
  int64_t columns; ///< columns of a panel, a multiple of kTile
  Part codes;      ///< i16 [padded m, depth]
  Part scales;     ///< f32 [m]
  Part marks;      ///< u8 [k]: columns with outliers
  Part outliers;   ///< i32 [k]: indices of outlier columns
  // Per slot: `row` while a is rounded, the other buffers afterwards.
  Part row;    ///< f32 [k]
  Part panel;  ///< i16 [columns, depth]
  Part sums;   ///< i32 [kRows, columns]
  Part lines;  ///< f32 [2 + kRows, columns]: scales, values, c's rows
  uint64_t slotBytes = 0;
  Part slots;
  Size total = 0;
  static Int8Plan of(const KernelRequest &request);
  int64_t panels() const { return (n + columns - 1) / columns; }
};

// Attention -------------------------------------------------------------------

/// Maximum number of queries or keys of one block.
inline constexpr int64_t kAttentionBlock = 128;
/// Maximum memory for AttentionScratch::partials.
inline constexpr int64_t kMostAttentionPartials = 32 << 20; // bytes

/// The workspace of attention: slots, each the scratch of one concurrent task.
/// bf16 rows are gathered densely if the matmuls are bf16, else widened to f32.
struct AttentionScratch {
  int64_t block; ///< min(length, kAttentionBlock)
  // Per slot.
  Part scores;                ///< f32 [block, block]
  Part rowStates;             ///< f32 [5, block]
  Part sum;                   ///< f32 [block, dim]
  Part queries, keys, values; ///< gathered rows
  Part narrowScores;          ///< scores in bf16, for a bf16 matmul
  Part library;               ///< scratch of a bf16 matmul
  // attention_grad only.
  Part scoreGradients, outGradients, outputs;
  Part slopes; ///< derivative of the cap, f32 [block, block]
  Part keyGradients, valueGradients; ///< f32 sums for all keys of a head
  uint64_t slotBytes = 0;

  Part slots;
  /// attention_grad with fewer key heads than slots: query heads that share a
  /// key head are separate tasks, and the gradients of its keys and values are
  /// summed afterwards. f32 [batch, heads, 2, length, dim]; else absent.
  Part partials;
  Size total = 0;

  static AttentionScratch of(const KernelRequest &request);
};

/// Maximum number of queries of a task of cached_attention, of keys that it
/// processes at a time, and of its concurrent tasks. The blocks of keys are
/// those of attention, so both have the same running maxima.
inline constexpr int64_t kCachedQueries = 8;
inline constexpr int64_t kCachedKeys = kAttentionBlock;
inline constexpr int64_t kCachedTasks = 16;

/// The workspace of cached_attention: the scratch of each concurrent task. A
/// task is a block of queries, with the query heads of one key head.
struct CachedAttentionScratch {
  Part queries, outputs; ///< f32 [kCachedQueries * group, dim]
  Part maxima, sums;     ///< f32 [kCachedQueries * group]
  Part keys, values;     ///< f32 [kCachedKeys, dim]
  Part scores;           ///< f32 [group, kCachedKeys]
  Part rowValues;        ///< f32 [3, group]
  uint64_t slotBytes = 0;

  static CachedAttentionScratch of(const KernelRequest &request);
};

// LM head and cross-entropy ---------------------------------------------------
//
// On the CPU, head_loss, head_loss_grad and head_part divide work as follows.
//
// The labelled rows of a chunk are gathered into blocks; the vocabulary is a
// sequence of panels: ranges of token ids, which are rows of w. A task is a
// block of rows with a range of panels. It computes the logits of one panel
// after another and keeps for each row a running maximum and the sum of
// e^(logit - maximum). It adds the exponentials' matmul with the panel to the
// row's gradient, which is rescaled when the maximum grows (the online softmax
// of Milakov and Gimelshein, arXiv:1805.02867, as FlashAttention does for keys,
// arXiv:2205.14135). So logits never leave a core's cache, and no memory grows
// with the vocabulary. Then the tasks' results for a block are merged. The
// number of ranges depends only on the rows, not on threads.

/// Maximum rows of a block, and token ids of a panel. The logits of a block and
/// a panel fit into a core's cache, and packing a panel is cheap compared with
/// its matmuls.
inline constexpr int64_t kHeadBlockRows = 256;
inline constexpr int64_t kHeadPanelWords = 256;
/// Number of tasks of a chunk with few rows.
inline constexpr int64_t kHeadTasks = 16;

/// A task's result for a row.
struct HeadRowState {
  double sum;    ///< sum of e^(logit - maximum)
  float maximum; ///< largest logit
  float target;  ///< logit of the target; 0 if another task has it
  int32_t best;  ///< first token id with the maximum
  float total;   ///< sum of the logits, with smoothing; else 0
};

/// Returns the number of token ids in the LM head's weight: the rows of w.
int64_t headWords(const KernelRequest &request);
/// Whether the gradient of hidden rows is requested.
bool hasHeadGradient(const KernelRequest &request);
bool hasHeadWeightGradient(const KernelRequest &request);

struct HeadPlan {
  int64_t chunkRows, hidden, vocab; ///< vocab: rows of w
  qlora_dtype weightType;
  /// Type of hidden rows, weights and exponentials in the matmuls: bf16 if
  /// hidden and w are bf16, else f32.
  qlora_dtype productType;
  bool hasGradient, hasWeightGradient;
  int64_t blockRows, panelWords;
  float cap; ///< cap of logits; 0: no cap
  double smoothing;
  bool hasOwnProbability;

  // Buffers of the workspace.
  Part rowNumbers, rowLosses; ///< i32, f64 [chunkRows]
  Part logSums;   ///< f64 [chunkRows]: log of the sum of exponentials
  Part gathered;  ///< hidden [blocks * blockRows, hidden]
  Part states;    ///< HeadRowState [tasks, blockRows]
  Part gradients; ///< f32 [tasks, blockRows, hidden]
  Part scales;    ///< f64 [chunkRows]: own probabilities, for dw
  /// Gradients of the sum of all logits, for smoothing: with a cap, for each
  /// row, shaped like `gradients`. Otherwise for all rows, which is the sum of
  /// the rows of w: f32 [kHeadTasks, hidden], see sumWords().
  Part logitGradients, wordSums;
  Part slots; ///< slots of slotBytes each
  Size total = 0;
  // Per slot.
  Part rowValues; ///< f32 [3, blockRows]
  Part logits;    ///< f32 [blockRows, panelWords]
  Part narrow;    ///< logits in productType, if that is not f32
  Part slopes;    ///< slopes of the cap, shaped like logits
  Part words;     ///< a panel in productType, if w has another type
  Part scratch;   ///< scratch of a matmul
  uint64_t slotBytes = 0;

  static HeadPlan of(const KernelRequest &request);

  /// Returns the number of panels of the first `words` rows of w.
  int64_t panels(int64_t words) const {
    return (words + panelWords - 1) / panelWords;
  }
  int64_t blocks(int64_t rows) const {
    return (rows + blockRows - 1) / blockRows;
  }
  /// Returns the number of ranges of panels. A task is a block and a range.
  int64_t ranges(int64_t blockCount) const {
    return std::clamp<int64_t>(kHeadTasks / blockCount, 1, panels(vocab));
  }
  /// The matmul that computes logits of `rows` rows for `count` token ids.
  GemmProblem logitsProduct(int64_t rows, int64_t count) const;
  GemmProblem hiddenGradientProduct(int64_t rows, int64_t count) const;
  GemmProblem weightGradientProduct(int64_t rows, int64_t count) const;

private:
  Size productScratch() const;
};

/// Workspace of head_merge on the CPU.
struct HeadMergePlan {
  Part losses;   ///< f64: losses of the rank's own rows
  Part wordSums; ///< like HeadPlan's
  Size total = 0;
  static HeadMergePlan of(const KernelRequest &request);
};

} // namespace qlora::plans

#endif // QLORA_RUNTIME_KERNELS_PLANS_WORKSPACES_H
