// SPDX-License-Identifier: MIT

#include "runtime/Kernels/Cpu/HeadPanels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Softmax.h"

namespace qlora {

/// Numbers of rows of the prepared GEMMs. A GEMM's shape is fixed, but the
/// number of labelled rows varies, so the smallest GEMM that fits is used.
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

Status HeadPanels::addProducts(int64_t rows, int64_t words, int64_t slots) {
  const auto add = [&](const GemmProblem &problem) {
    return products.add(problem, slots, plan.scratch.bytes);
  };
  QLORA_RETURN_IF_ERROR(add(plan.logitsProduct(rows, words)));
  if (plan.hasGradient)
    QLORA_RETURN_IF_ERROR(add(plan.hiddenGradientProduct(rows, words)));
  return plan.hasWeightGradient ? add(plan.weightGradientProduct(rows, words))
                                : Status::ok();
}

int64_t HeadPanels::paddedRows(int64_t count) const {
  return *std::lower_bound(ladder.begin(), ladder.end(), count);
}

/// Returns panel `number`. Converts its rows of w to the type of the GEMMs.
HeadPanels::Panel HeadPanels::panelAt(int64_t number, const void *w,
                                      uint8_t *slotScratch) const {
  Panel panel;
  panel.first = number * plan.panelWords;
  panel.count = std::min(plan.panelWords, plan.vocab - panel.first);
  panel.shifts = plan.rowValues.in<float>(slotScratch);
  panel.sums = panel.shifts + plan.blockRows;
  panel.targets = panel.sums + plan.blockRows;
  panel.logits = plan.logits.in<float>(slotScratch);
  panel.slopes = plan.slopes.in<float>(slotScratch);
  panel.narrow = plan.narrow.in<uint16_t>(slotScratch);
  panel.scratch = plan.scratch.in(slotScratch);
  panel.words = elementAt(w, plan.weightType, panel.first * plan.hidden);
  if (uint8_t *const words = plan.words.in(slotScratch)) {
    convertRun(plan.weightType, panel.words, plan.productType, words,
               panel.count * plan.hidden);
    panel.words = words;
  }
  return panel;
}

Status HeadPanels::computeLogits(const HeadBlock &block, const Panel &panel,
                                 int64_t slot) const {
  QLORA_RETURN_IF_ERROR(
      products.find(plan.logitsProduct(paddedRows(block.count), panel.count),
                    slot)
          .run(block.hidden, panel.words, panel.logits, panel.scratch));
  for (const auto word : block.inputs.replaced.in(panel.first, panel.count))
    for (int64_t row = 0; row < block.count; ++row)
      panel.logits[row * panel.count + word.number - panel.first] =
          block.inputs.replaced.at(block.numbers[row], word);
  if (plan.cap != 0)
    capRun(panel.logits, block.count * panel.count, plan.cap, panel.slopes);
  hideRowsWithoutWords(block, panel);
  return Status::ok();
}

/// Sets logits to -infinity for rows of w that have no token id.
void HeadPanels::hideRowsWithoutWords(const HeadBlock &block,
                                      const Panel &panel) const {
  const int64_t words =
      std::min(panel.count, block.inputs.piece.words - panel.first);
  if (words == panel.count)
    return;
  for (int64_t row = 0; row < block.count; ++row)
    std::fill(panel.logits + row * panel.count + words,
              panel.logits + (row + 1) * panel.count,
              -std::numeric_limits<float>::infinity());
}

float HeadPanels::capped(float logit) const {
  if (plan.cap != 0)
    capRun(&logit, 1, plan.cap, nullptr);
  return logit;
}

/// Raises each row's maximum to the panel's largest logit, and rescales the
/// row's sums if the maximum has grown.
void HeadPanels::raiseMaxima(const HeadBlock &block, const Panel &panel,
                             HeadRowState *states, float *gradient) const {
  maximaOfRows(panel.logits, block.count, panel.count, panel.shifts);
  for (int64_t row = 0; row < block.count; ++row) {
    HeadRowState &state = states[row];
    const float maximum = panel.shifts[row];
    if (maximum > state.maximum) {
      const float factor = std::exp(state.maximum - maximum);
      state.sum *= factor;
      if (gradient)
        scaleRun(gradient + row * plan.hidden, plan.hidden, factor);
      state.maximum = maximum;
      const float *logits = panel.logits + row * panel.count;
      state.best = panel.first +
                   (std::find(logits, logits + panel.count, maximum) - logits);
    }
    panel.shifts[row] = state.maximum;
  }
}

template <typename Task>
void HeadPanels::forTargets(const HeadBlock &block, const Panel &panel,
                            Task task) const {
  for (int64_t row = 0; row < block.count; ++row)
    if (panel.has(block.targetOf(row)))
      task(row);
}

/// Saves the targets' logits, then replaces all logits by exponentials relative
/// to the shifts, and sums the exponentials of each row. If `isRaw` is false,
/// the exponentials become factors of the gradient's GEMMs.
void HeadPanels::exponentiate(const HeadBlock &block, const Panel &panel,
                              bool isRaw) const {
  forTargets(block, panel, [&](int64_t row) {
    panel.targets[row] =
        panel.logits[row * panel.count + block.targetOf(row) - panel.first];
  });
  const bool isWide =
      plan.hasGradient && (isRaw || !panel.narrow || panel.slopes);
  exponentiateRows({panel.logits, block.count, panel.count, panel.shifts,
                    panel.sums, isWide ? panel.logits : nullptr,
                    plan.hasGradient && !isWide ? panel.narrow : nullptr});
  if (panel.slopes && !isRaw)
    multiplyRun(panel.logits, panel.slopes, block.count * panel.count,
                panel.narrow);
}

void HeadPanels::setTargetFactor(const HeadBlock &block, const Panel &panel,
                                 int64_t row, float factor) const {
  storeElement(plan.productType, panel.factors(),
               row * panel.count + block.targetOf(row) - panel.first, factor);
}

/// Clears the factors of rows [begin, end), which have no label.
void HeadPanels::clearFactors(const Panel &panel, int64_t begin,
                              int64_t end) const {
  clearRun(plan.productType,
           elementAt(panel.factors(), plan.productType, begin * panel.count),
           (end - begin) * panel.count);
}

/// Clears the factors of replaced logits, which have no gradient through w.
void HeadPanels::clearReplaced(const HeadBlock &block,
                               const Panel &panel) const {
  for (const auto word : block.inputs.replaced.in(panel.first, panel.count))
    for (int64_t row = 0; row < block.count; ++row)
      storeElement(plan.productType, panel.factors(),
                   row * panel.count + word.number - panel.first, 0.0f);
}

/// Adds the panel's logits to the rows' totals.
void HeadPanels::addTotals(const HeadBlock &block, const Panel &panel,
                           HeadRowState *states) const {
  const int64_t words =
      std::min(panel.count, block.inputs.piece.words - panel.first);
  for (int64_t row = 0; row < block.count; ++row) {
    const float *logits = panel.logits + row * panel.count;
    double total = 0;
    for (int64_t word = 0; word < words; ++word)
      total += logits[word];
    states[row].total += static_cast<float>(total);
  }
}

/// Overwrites the factors by the cap's slopes.
Status HeadPanels::addLogitGradients(const HeadBlock &block, const Panel &panel,
                                     float *logitGradient, int64_t slot) const {
  const int64_t rows = paddedRows(block.count);
  convertRun(QLORA_DTYPE_F32, panel.slopes, plan.productType, panel.factors(),
             block.count * panel.count);
  clearReplaced(block, panel);
  clearFactors(panel, block.count, rows);
  return products.find(plan.hiddenGradientProduct(rows, panel.count), slot)
      .run(panel.factors(), panel.words, logitGradient, panel.scratch);
}

Status HeadPanels::walk(const HeadBlock &block, int64_t begin, int64_t end,
                        const HeadResults &results,
                        const KernelObserver *observer, int64_t slot,
                        uint8_t *slotScratch) const {
  HeadRowState *const states = results.states;
  float *const gradient = results.gradient;
  const int64_t rows = paddedRows(block.count);
  std::fill_n(states, block.count, emptyState());
  for (float *sums : {gradient, results.logitGradient})
    if (sums)
      std::fill_n(sums, rows * plan.hidden, 0.0f);
  for (int64_t number = begin; number < end; ++number) {
    const Panel panel = panelAt(number, block.inputs.w, slotScratch);
    QLORA_RETURN_IF_ERROR(computeLogits(block, panel, slot));
    if (observer && observer->onLogits)
      observer->onLogits({{block.numbers, static_cast<size_t>(block.count)},
                          panel.logits,
                          block.inputs.piece.first + panel.first,
                          panel.count,
                          block.inputs.piece.vocab});
    if (plan.smoothing != 0)
      addTotals(block, panel, states);
    raiseMaxima(block, panel, states, gradient);
    exponentiate(block, panel);
    for (int64_t row = 0; row < block.count; ++row)
      states[row].sum += panel.sums[row];
    forTargets(block, panel,
               [&](int64_t row) { states[row].target = panel.targets[row]; });
    if (!gradient)
      continue;
    // The target's row of w is added later, times softmax - 1.
    forTargets(block, panel,
               [&](int64_t row) { setTargetFactor(block, panel, row, 0.0f); });
    clearReplaced(block, panel);
    clearFactors(panel, block.count, rows);
    QLORA_RETURN_IF_ERROR(
        products.find(plan.hiddenGradientProduct(rows, panel.count), slot)
            .run(panel.factors(), panel.words, gradient, panel.scratch));
    if (results.logitGradient)
      QLORA_RETURN_IF_ERROR(
          addLogitGradients(block, panel, results.logitGradient, slot));
  }
  return Status::ok();
}

/// Replaces the logits by the factors of the weight gradient if the loss has
/// smoothing or scales. The shifts are the logs of sums.
void HeadPanels::setLossFactors(const HeadBlock &block, const Panel &panel,
                                const double *scales) const {
  const TokenLoss loss = {plan.smoothing, plan.hasOwnProbability,
                          double(plan.vocab)};
  const auto share = static_cast<float>(loss.share());
  exponentiate(block, panel, /*isRaw=*/true);
  for (int64_t row = 0; row < block.count; ++row) {
    const float scale = scales ? static_cast<float>(scales[row]) : 1;
    float *const factors = panel.logits + row * panel.count;
    for (int64_t word = 0; word < panel.count; ++word)
      factors[word] = (factors[word] - share) * scale;
    if (const int64_t target = block.targetOf(row); panel.has(target))
      factors[target - panel.first] =
          scale * static_cast<float>(
                      loss.slope(panel.targets[row], panel.shifts[row], true));
  }
  const int64_t count = block.count * panel.count;
  if (panel.slopes)
    multiplyRun(panel.logits, panel.slopes, count, panel.narrow);
  else if (panel.narrow)
    narrow(panel.logits, plan.productType, panel.narrow, count);
}

Status HeadPanels::addWeightGradient(const HeadBlock &block, int64_t number,
                                     const double *logSums,
                                     const double *scales, float *dw,
                                     int64_t slot, uint8_t *slotScratch) const {
  const Panel panel = panelAt(number, block.inputs.w, slotScratch);
  const int64_t rows = paddedRows(block.count);
  QLORA_RETURN_IF_ERROR(computeLogits(block, panel, slot));
  for (int64_t row = 0; row < block.count; ++row)
    panel.shifts[row] = float(logSums[row]);
  if (scales || plan.smoothing != 0) {
    setLossFactors(block, panel, scales);
  } else {
    exponentiate(block, panel);
    forTargets(block, panel, [&](int64_t row) {
      setTargetFactor(block, panel, row,
                      std::expm1(panel.targets[row] - panel.shifts[row]) *
                          capSlope(panel.targets[row], plan.cap));
    });
  }
  clearFactors(panel, block.count, rows);
  return products.find(plan.weightGradientProduct(rows, panel.count), slot)
      .run(panel.factors(), block.hidden, dw + panel.first * plan.hidden,
           panel.scratch);
}

} // namespace qlora
