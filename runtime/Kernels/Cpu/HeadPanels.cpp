// SPDX-License-Identifier: MIT

#include "runtime/Kernels/Cpu/HeadPanels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"

namespace qlora {

/// A product's shape is fixed when prepared, but the number of labelled rows
/// is the data's: so a few sizes, of which the smallest that fits is used.
static constexpr int64_t kSizes[] = {16, 32, 64, 96, 128, 192};

StatusOr<std::unique_ptr<HeadPanels>> HeadPanels::create(const HeadPlan &plan,
                                                         int64_t slots) {
  std::unique_ptr<HeadPanels> panels(new HeadPanels(plan));
  for (int64_t rows : kSizes)
    if (rows < plan.blockRows)
      panels->ladder.push_back(rows);
  panels->ladder.push_back(plan.blockRows);
  for (int64_t rows : panels->ladder)
    for (int64_t words : {plan.panelWords, plan.vocab % plan.panelWords})
      if (words > 0)
        QLORA_RETURN_IF_ERROR(panels->addProducts(rows, words, slots));
  return panels;
}

/// Once for each slot: a product's memory objects are those of one thread.
Status HeadPanels::addProducts(int64_t rows, int64_t words, int64_t slots) {
  const ScopedThreads sequential(1);
  Products added = {rows, words, {}, {}, {}};
  const auto add = [&](std::vector<std::unique_ptr<Gemm>> &to,
                       const GemmProblem &problem) -> Status {
    QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Gemm> gemm,
                           Gemm::create(problem, plan.scratch.bytes()));
    to.push_back(std::move(gemm));
    return Status::ok();
  };
  for (int64_t slot = 0; slot < slots; ++slot) {
    QLORA_RETURN_IF_ERROR(add(added.logits, plan.logitsProduct(rows, words)));
    if (plan.hasGradient)
      QLORA_RETURN_IF_ERROR(
          add(added.hiddenGradient, plan.hiddenGradientProduct(rows, words)));
    if (plan.hasWeightGradient)
      QLORA_RETURN_IF_ERROR(
          add(added.weightGradient, plan.weightGradientProduct(rows, words)));
  }
  products.push_back(std::move(added));
  return Status::ok();
}

int64_t HeadPanels::paddedRows(int64_t count) const {
  return *std::lower_bound(ladder.begin(), ladder.end(), count);
}

const HeadPanels::Products &HeadPanels::productsFor(int64_t count,
                                                    int64_t words) const {
  const auto fits = [rows = paddedRows(count), words](const Products &p) {
    return p.rows == rows && p.words == words;
  };
  return *std::find_if(products.begin(), products.end(), fits);
}

/// With its words in the type of the products.
HeadPanels::Panel HeadPanels::panelAt(int64_t number, const void *w,
                                      uint8_t *slotScratch) const {
  Panel panel;
  panel.first = number * plan.panelWords;
  panel.count = std::min(plan.panelWords, plan.vocab - panel.first);
  uint8_t *const narrow = slotScratch + plan.logits.bytes();
  uint8_t *const words = narrow + plan.narrow.bytes();
  panel.logits = reinterpret_cast<float *>(slotScratch);
  panel.factors = plan.narrow.bytes() > 0 ? narrow : slotScratch;
  panel.scratch = words + plan.words.bytes();
  panel.words = elementAt(w, plan.weightType, panel.first * plan.hidden);
  if (plan.words.bytes() > 0) {
    convertRun(plan.weightType, panel.words, plan.productType, words,
               panel.count * plan.hidden);
    panel.words = words;
  }
  return panel;
}

/// Takes a panel's logits of a row into its state. With a gradient, the
/// factors of its product become the exponentials, 0 at the target: that word
/// is added last, by its exact factor, which cancels where it is likely.
void HeadPanels::takeRow(const Panel &panel, int64_t row, int64_t target,
                         HeadRowState &state, float *gradient) const {
  float *const logits = panel.logits + row * panel.count;
  const float maximum = maximumOf(logits, panel.count);
  if (maximum > state.maximum) {
    const float factor = std::exp(state.maximum - maximum);
    state.sum *= factor;
    if (gradient)
      scaleRun(gradient, plan.hidden, factor);
    state.maximum = maximum;
    state.best = panel.first +
                 (std::find(logits, logits + panel.count, maximum) - logits);
  }
  const int64_t at = target - panel.first;
  const bool hasTarget = at >= 0 && at < panel.count;
  if (hasTarget)
    state.target = logits[at];
  if (!gradient) {
    state.sum += sumExponentials(logits, panel.count, state.maximum);
    return;
  }
  void *const factors =
      elementAt(panel.factors, plan.productType, row * panel.count);
  state.sum += plan.productType == QLORA_DTYPE_BF16
                   ? exponentiateBF16(logits, panel.count, state.maximum,
                                      static_cast<uint16_t *>(factors))
                   : exponentiate(logits, panel.count, state.maximum);
  if (hasTarget)
    storeElement(plan.productType, factors, at, 0.0f);
}

void HeadPanels::clearFactors(const Panel &panel, int64_t begin,
                              int64_t end) const {
  std::memset(elementAt(panel.factors, plan.productType, begin * panel.count),
              0,
              static_cast<size_t>((end - begin) * panel.count *
                                  (dtypeBits(plan.productType) / 8)));
}

Status HeadPanels::walk(const HeadBlock &block, const void *w, int64_t begin,
                        int64_t end, HeadRowState *states, float *gradient,
                        const KernelObserver *observer, int64_t slot,
                        uint8_t *slotScratch) const {
  const int64_t rows = paddedRows(block.count);
  std::fill_n(states, block.count,
              HeadRowState{0, -std::numeric_limits<float>::infinity(), 0, -1});
  if (gradient)
    std::fill_n(gradient, rows * plan.hidden, 0.0f);
  for (int64_t number = begin; number < end; ++number) {
    const Panel panel = panelAt(number, w, slotScratch);
    const Products &products = productsFor(block.count, panel.count);
    QLORA_RETURN_IF_ERROR(products.logits[slot]->run(
        block.hidden, panel.words, panel.logits, panel.scratch));
    if (observer && observer->onLogits)
      observer->onLogits({{block.numbers, static_cast<size_t>(block.count)},
                          panel.logits,
                          panel.first,
                          panel.count,
                          plan.vocab});
    for (int64_t row = 0; row < block.count; ++row)
      takeRow(panel, row, block.targets[block.numbers[row]], states[row],
              gradient ? gradient + row * plan.hidden : nullptr);
    if (!gradient)
      continue;
    clearFactors(panel, block.count, rows);
    QLORA_RETURN_IF_ERROR(products.hiddenGradient[slot]->run(
        panel.factors, panel.words, gradient, panel.scratch));
  }
  return Status::ok();
}

Status HeadPanels::addWeightGradient(const HeadBlock &block, const void *w,
                                     int64_t number, const double *logSums,
                                     float *dw, int64_t slot,
                                     uint8_t *slotScratch) const {
  const Panel panel = panelAt(number, w, slotScratch);
  const Products &products = productsFor(block.count, panel.count);
  QLORA_RETURN_IF_ERROR(products.logits[slot]->run(
      block.hidden, panel.words, panel.logits, panel.scratch));
  for (int64_t row = 0; row < block.count; ++row) {
    float *const logits = panel.logits + row * panel.count;
    exponentiate(logits, panel.count, float(logSums[row]));
    const int64_t at = block.targets[block.numbers[row]] - panel.first;
    if (at >= 0 && at < panel.count)
      logits[at] -= 1.0f;
    if (plan.productType != QLORA_DTYPE_F32)
      narrow(logits, plan.productType,
             elementAt(panel.factors, plan.productType, row * panel.count),
             panel.count);
  }
  clearFactors(panel, block.count, products.rows);
  return products.weightGradient[slot]->run(panel.factors, block.hidden,
                                            dw + panel.first * plan.hidden,
                                            panel.scratch);
}

} // namespace qlora
