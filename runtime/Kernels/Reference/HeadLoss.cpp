// SPDX-License-Identifier: MIT

// Plain head_loss and head_loss_grad: one labelled row after another.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/HeadPanels.h"

namespace qlora::cpu {

namespace {

/// One labelled row, with a buffer for its logits.
struct ReferenceRow {
  const HeadShape &shape;
  const TokenLoss &kind;
  const HeadOperands &operands;
  int64_t row;
  float *logits;

  double hidden(int64_t i) const {
    return loadElement(shape.hiddenType, operands.hidden, row * shape.ldh + i);
  }
  double weight(int64_t word, int64_t i) const {
    return loadElement(shape.weightType, operands.w, word * shape.hidden + i);
  }
  float capped(double logit) const {
    return float(shape.cap == 0 ? logit
                                : shape.cap * std::tanh(logit / shape.cap));
  }
  void computeLogits() const;
  double logSumExp() const;
  /// Returns the factor of the loss and its gradient.
  double scale(double lse) const;
  double loss(double lse) const;
  void addGradients(double lse) const;
};

} // namespace

void ReferenceRow::computeLogits() const {
  for (int64_t word = 0; word < shape.vocab; ++word) {
    double sum = 0;
    for (int64_t i = 0; i < shape.hidden; ++i)
      sum += hidden(i) * weight(word, i);
    logits[word] = capped(sum);
  }
  for (const auto word : operands.replaced.words)
    logits[word.number] = capped(operands.replaced.at(row, word));
}

double ReferenceRow::logSumExp() const {
  const double maximum = *std::max_element(logits, logits + shape.vocab);
  double sum = 0;
  for (int64_t word = 0; word < shape.vocab; ++word)
    sum += std::exp(logits[word] - maximum);
  return maximum + std::log(sum);
}

double ReferenceRow::scale(double lse) const {
  return kind.hasOwnProbability ? std::exp(logits[operands.targets[row]] - lse)
                                : 1;
}

double ReferenceRow::loss(double lse) const {
  const double mean =
      std::accumulate(logits, logits + shape.vocab, 0.0) / double(shape.vocab);
  return scale(lse) *
         ((1 - kind.smoothing) * (lse - logits[operands.targets[row]]) +
          kind.smoothing * (lse - mean));
}

void ReferenceRow::addGradients(double lse) const {
  const int32_t target = operands.targets[row];
  const double factor = scale(lse);
  for (int64_t word = 0; word < shape.vocab; ++word) {
    const double t = shape.cap == 0 ? 0 : logits[word] / shape.cap;
    const double gradient = std::exp(logits[word] - lse) -
                            (word == target ? 1 - kind.smoothing : 0) -
                            kind.smoothing / double(shape.vocab);
    logits[word] = float(factor * gradient * (1 - t * t));
  }
  for (const auto word : operands.replaced.words) {
    storeElement(shape.columnsType, operands.dcolumns,
                 row * shape.replaced + word.column, logits[word.number]);
    logits[word.number] = 0;
  }
  for (int64_t i = 0; i < shape.hidden; ++i) {
    double sum = 0;
    for (int64_t word = 0; word < shape.vocab; ++word)
      sum += logits[word] * weight(word, i);
    storeElement(shape.dhiddenType, operands.dhidden, row * shape.lddh + i,
                 float(sum));
  }
  if (!operands.dw)
    return;
  for (int64_t word = 0; word < shape.vocab; ++word)
    for (int64_t i = 0; i < shape.hidden; ++i)
      operands.dw[word * shape.hidden + i] += float(logits[word] * hidden(i));
}

static Status runReference(const HeadShape &shape, const TokenLoss &kind,
                           const LibraryKernelArgs &args, bool hasGradient) {
  QLORA_ASSIGN_OR_RETURN(const HeadOperands operands,
                         HeadOperands::of(args, shape, hasGradient));
  std::vector<double> losses(static_cast<size_t>(shape.lines));
  std::fill_n(operands.count, shape.lines, 0.0f);
  std::vector<float> logits(static_cast<size_t>(shape.vocab));
  for (int64_t row = 0; row < shape.rows; ++row) {
    const ReferenceRow line = {shape, kind, operands, row, logits.data()};
    const int32_t target = operands.targets[row];
    operands.correct[row] = 0;
    if (target == kNoTarget) {
      for (int64_t i = 0; hasGradient && i < shape.hidden; ++i)
        storeElement(shape.dhiddenType, operands.dhidden, row * shape.lddh + i,
                     0.0f);
      for (int64_t i = 0; hasGradient && i < shape.replaced; ++i)
        storeElement(shape.columnsType, operands.dcolumns,
                     row * shape.replaced + i, 0.0f);
      continue;
    }
    line.computeLogits();
    const auto number = static_cast<int32_t>(row);
    if (args.observer && args.observer->onLogits)
      args.observer->onLogits(
          {{&number, 1}, line.logits, 0, shape.vocab, shape.vocab});
    const double lse = line.logSumExp();
    losses[shape.lineOf(row)] += line.loss(lse);
    ++operands.count[shape.lineOf(row)];
    operands.correct[row] =
        std::max_element(line.logits, line.logits + shape.vocab) ==
        line.logits + target;
    if (hasGradient)
      line.addGradients(lse);
  }
  std::ranges::copy(losses, operands.loss);
  return Status::ok();
}

PreparedKernel head_loss::reference::prepare(const KernelRequest &request,
                                             uint64_t) {
  const HeadShape shape = HeadShape::of(request);
  return makeKernel(
      [shape, kind = TokenLoss::of(request)](const LibraryKernelArgs &args) {
        return runReference(shape, kind, args, false);
      });
}

PreparedKernel head_loss_grad::reference::prepare(const KernelRequest &request,
                                                  uint64_t) {
  const HeadShape shape = HeadShape::of(request);
  return makeKernel(
      [shape, kind = TokenLoss::of(request)](const LibraryKernelArgs &args) {
        return runReference(shape, kind, args, true);
      });
}

} // namespace qlora::cpu
