// SPDX-License-Identifier: MIT

// How head_loss and head_loss_grad cut their work on the CPU, and their
// workspace.
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

#ifndef QLORA_RUNTIME_KERNELS_REQUESTS_HEADPLAN_H
#define QLORA_RUNTIME_KERNELS_REQUESTS_HEADPLAN_H

#include <algorithm>

#include "runtime/Kernels/Requests/Workspaces.h"

namespace qlora::requests {

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

struct HeadPlan {
  int64_t chunkRows, hidden, vocab;
  qlora_dtype weightType;
  /// Of hidden rows, words and exponentials in the products: bf16 where both
  /// operands are, else f32.
  qlora_dtype productType;
  bool hasGradient, hasWeightGradient;
  int64_t blockRows, panelWords;

  // Parts of the workspace, in order.
  Size rowNumbers = 0, rowLosses = 0; ///< i32, f64 [chunkRows]
  Size logSums = 0;   ///< f64 [chunkRows]: log of the sum of exponentials
  Size gathered = 0;  ///< hidden [blocks * blockRows, hidden]
  Size states = 0;    ///< HeadRowState [tasks, blockRows]
  Size gradients = 0; ///< f32 [tasks, blockRows, hidden]
  // Of each slot.
  Size rowValues = 0; ///< f32 [3, blockRows]
  Size logits = 0;  ///< f32 [blockRows, panelWords]
  Size narrow = 0;  ///< the same in productType, where that is not f32
  Size words = 0;   ///< a panel in productType, where w is of another type
  Size scratch = 0; ///< of a product

  static HeadPlan of(const KernelRequest &request);

  int64_t panels() const { return (vocab + panelWords - 1) / panelWords; }
  int64_t blocks(int64_t rows) const {
    return (rows + blockRows - 1) / blockRows;
  }
  /// Ranges of panels, each a task for every block.
  int64_t ranges(int64_t blockCount) const {
    return std::clamp<int64_t>(kHeadTasks / blockCount, 1, panels());
  }
  Size slotBytes() const {
    return rowValues + logits + narrow + words + scratch;
  }
  Size total() const {
    return rowNumbers + rowLosses + logSums + gathered + states + gradients +
           slotBytes() * Size(kGemmSlots);
  }

  /// Logits of `rows` rows for `count` words.
  GemmProblem logitsProduct(int64_t rows, int64_t count) const;
  /// Adds to the gradient of hidden rows.
  GemmProblem hiddenGradientProduct(int64_t rows, int64_t count) const;
  /// Adds to the gradient of words.
  GemmProblem weightGradientProduct(int64_t rows, int64_t count) const;
};

} // namespace qlora::requests

#endif // QLORA_RUNTIME_KERNELS_REQUESTS_HEADPLAN_H
