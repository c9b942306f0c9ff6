// SPDX-License-Identifier: MIT

// What a task of the head does with a block of rows and a range of panels of
// words, and one of the weight's gradient with a panel and all blocks; see
// Plans/Workspaces.h.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADPANELS_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADPANELS_H

#include <memory>
#include <vector>

#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/HeadOperands.h"
#include "runtime/Kernels/Cpu/HeadStates.h"

namespace qlora {

using plans::HeadPlan;

/// Labelled rows, gathered. `hidden` has room for the plan's blockRows; rows
/// beyond `count` are zero, so that a product prepared for more may be used.
struct HeadBlock {
  const void *hidden;     ///< productType [blockRows, hidden]
  const int32_t *numbers; ///< [count]: row numbers of the launch
  const HeadInputs &inputs; ///< of the launch, rows by their numbers
  int64_t count;
  /// As a row of w; w has no such row where it is another piece's word.
  int64_t targetOf(int64_t row) const {
    return inputs.targets[numbers[row]] - inputs.piece.first;
  }
};

/// The products of every shape, prepared for each slot, over a workspace that
/// has the slots' scratch.
class HeadPanels {
public:
  static StatusOr<std::unique_ptr<HeadPanels>> create(const HeadPlan &plan,
                                                      int64_t slots);

  /// Walks over the panels [begin, end) of w. For each row of the block: its
  /// state is set, and `gradient` (f32 [blockRows, hidden], null: none) becomes
  /// the sum over the words, but the row's target and those that are replaced,
  /// of e^(logit - maximum) * word.
  Status walk(const HeadBlock &block, int64_t begin, int64_t end,
              HeadRowState *states, float *gradient,
              const KernelObserver *observer, int64_t slot,
              uint8_t *slotScratch) const;

  /// Adds the block's part of the gradient of a panel's words, in the rows of
  /// `dw` [vocab, hidden]. `logSums`: of each row's exponentials.
  Status addWeightGradient(const HeadBlock &block, int64_t panel,
                           const double *logSums, float *dw, int64_t slot,
                           uint8_t *slotScratch) const;

  /// Rows that a product for `count` rows computes.
  int64_t paddedRows(int64_t count) const;

  /// A given logit as the loss has it.
  float capped(float logit) const;

private:
  /// Words [first, first + count), as they are multiplied, and what a slot
  /// has of them.
  struct Panel {
    int64_t first, count;
    const void *words;
    float *shifts, *sums, *targets; ///< of rows; targets: their logits
    float *logits;
    float *slopes;    ///< of a cap, where there is a gradient; else null
    uint16_t *narrow; ///< factors of the gradients' products; null: logits
    uint8_t *scratch;
    void *factors() const {
      return narrow ? static_cast<void *>(narrow) : logits;
    }
    bool has(int64_t word) const {
      return word >= first && word < first + count;
    }
  };

  explicit HeadPanels(const HeadPlan &plan) : plan(plan) {}
  Status addProducts(int64_t rows, int64_t words, int64_t slots);
  Panel panelAt(int64_t number, const void *w, uint8_t *slotScratch) const;
  /// A panel's logits, as the loss has them.
  Status computeLogits(const HeadBlock &block, const Panel &panel,
                       int64_t slot) const;
  void hideRowsWithoutWords(const HeadBlock &block, const Panel &panel) const;
  void raiseMaxima(const HeadBlock &block, const Panel &panel,
                   HeadRowState *states, float *gradient) const;
  /// Calls task(row) for the rows whose target the panel has.
  template <typename Task>
  void forTargets(const HeadBlock &block, const Panel &panel, Task task) const;
  void exponentiate(const HeadBlock &block, const Panel &panel) const;
  void setTargetFactor(const HeadBlock &block, const Panel &panel, int64_t row,
                       float factor) const;
  void clearFactors(const Panel &panel, int64_t begin, int64_t end) const;
  void clearReplaced(const HeadBlock &block, const Panel &panel) const;

  HeadPlan plan;
  std::vector<int64_t> ladder; ///< numbers of rows, fewest first
  SlotProducts products;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADPANELS_H
