// SPDX-License-Identifier: MIT

// Tasks of the LM head. A forward task processes a block of rows with a range
// of panels of w. A weight gradient task processes one panel with all blocks.
// (Plans/Workspaces.h defines blocks and panels.)

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADPANELS_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADPANELS_H

#include <memory>
#include <vector>

#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/HeadOperands.h"
#include "runtime/Kernels/Cpu/HeadStates.h"

namespace qlora {

using plans::HeadPlan;

/// A block of gathered labelled rows. `hidden` has the plan's blockRows rows.
/// Rows from `count` on are zero, so that a GEMM for more rows can be used.
struct HeadBlock {
  const void *hidden;     ///< productType [blockRows, hidden]
  const int32_t *numbers; ///< [count]: row indices in the launch
  const HeadInputs &inputs; ///< inputs of the whole launch
  int64_t count;
  /// Returns the target's row in w; outside w if another shard has the target.
  int64_t targetOf(int64_t row) const {
    return inputs.targets[numbers[row]] - inputs.piece.first;
  }
};

/// What HeadPanels::walk computes for each row of a block. The gradients are
/// f32 [blockRows, hidden], or null.
struct HeadResults {
  HeadRowState *states;
  /// Sums of e^(logit - maximum) * w[token id] over the panels' token ids
  /// except the row's target and replaced token ids.
  float *gradient;
  /// Sums of the cap's slope * w[token id], except replaced token ids.
  float *logitGradient;
};

/// GEMMs of all shapes, for each slot. Their scratch is in the workspace.
class HeadPanels {
public:
  static StatusOr<std::unique_ptr<HeadPanels>> create(const HeadPlan &plan,
                                                      int64_t slots);

  /// Processes the panels [begin, end) of w and sets `results`.
  Status walk(const HeadBlock &block, int64_t begin, int64_t end,
              const HeadResults &results, const KernelObserver *observer,
              int64_t slot, uint8_t *slotScratch) const;

  /// Adds the block's gradient of a panel of w to the panel's rows of `dw`
  /// [vocab, hidden]. `logSums`: log of the sum of each row's exponentials.
  /// `scales`: factors of the rows' gradients; null: 1.
  Status addWeightGradient(const HeadBlock &block, int64_t panel,
                           const double *logSums, const double *scales,
                           float *dw, int64_t slot, uint8_t *slotScratch) const;

  /// Returns the number of rows of the smallest GEMM that holds `count` rows.
  int64_t paddedRows(int64_t count) const;

  /// Returns the capped value of a replaced logit.
  float capped(float logit) const;

private:
  /// A panel with token ids [first, first + count) in the type of the GEMMs,
  /// and a slot's buffers for it.
  struct Panel {
    int64_t first, count;
    const void *words;
    float *shifts, *sums, *targets; ///< per row; targets: the target's logit
    float *logits;
    float *slopes;    ///< derivatives of the cap, for a gradient; else null
    uint16_t *narrow; ///< bf16 factors of the gradient's GEMMs; null: f32
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
  /// Computes a panel's logits, with cap and replacements.
  Status computeLogits(const HeadBlock &block, const Panel &panel,
                       int64_t slot) const;
  void hideRowsWithoutWords(const HeadBlock &block, const Panel &panel) const;
  void raiseMaxima(const HeadBlock &block, const Panel &panel,
                   HeadRowState *states, float *gradient) const;
  /// Calls task(row) for the rows with a target in the panel.
  template <typename Task>
  void forTargets(const HeadBlock &block, const Panel &panel, Task task) const;
  void exponentiate(const HeadBlock &block, const Panel &panel,
                    bool isRaw = false) const;
  void addTotals(const HeadBlock &block, const Panel &panel,
                 HeadRowState *states) const;
  Status addLogitGradients(const HeadBlock &block, const Panel &panel,
                           float *logitGradient, int64_t slot) const;
  void setLossFactors(const HeadBlock &block, const Panel &panel,
                      const double *scales) const;
  void setTargetFactor(const HeadBlock &block, const Panel &panel, int64_t row,
                       float factor) const;
  void clearFactors(const Panel &panel, int64_t begin, int64_t end) const;
  void clearReplaced(const HeadBlock &block, const Panel &panel) const;

  HeadPlan plan;
  std::vector<int64_t> ladder; ///< rows of each prepared GEMM, ascending
  SlotProducts products;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADPANELS_H
