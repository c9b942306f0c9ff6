// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad, chunked: labelled rows are gathered, tasks
// walk over the vocabulary with blocks of them, and what they found is merged.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/HeadPanels.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"

namespace qlora {
namespace cpu {

namespace {

/// A run with the first `rows` row numbers of its workspace.
struct Chunk {
  const LibraryKernelArgs &args;
  const HeadOperands &operands;
  int64_t rows, blocks, ranges;

  template <typename T> T *at(plans::Part part) const {
    return part.in<T>(args.buffers.back());
  }
};

class HeadLoss final : public LibraryKernel {
public:
  static PreparedKernel prepare(const KernelRequest &request);
  Status run(const LibraryKernelArgs &args) override;

private:
  explicit HeadLoss(const KernelRequest &request)
      : shape(HeadShape::of(request)), plan(HeadPlan::of(request)),
        tasks(plans::kGemmSlots) {}
  uint8_t *slotOf(const Chunk &chunk, int64_t slot) const {
    return chunk.at<uint8_t>(plan.slots) + slot * int64_t(plan.slotBytes);
  }

  void gather(const Chunk &chunk) const;
  HeadBlock blockOf(const Chunk &chunk, int64_t block) const;
  /// Where states and gradients have a row of the chunk, of a range's task.
  int64_t taskRow(const Chunk &chunk, int64_t row, int64_t range) const {
    const int64_t task = row / plan.blockRows * chunk.ranges + range;
    return task * plan.blockRows + row % plan.blockRows;
  }
  Status walk(const Chunk &chunk);
  void merge(const Chunk &chunk, int64_t row) const;
  void mergeGradient(const Chunk &chunk, int64_t row, double targetGradient,
                     double logSum) const;
  void setReplacedGradient(const HeadOperands &operands, int64_t number,
                           double logSum) const;
  Status addWeightGradient(const Chunk &chunk);
  Status runChunk(const Chunk &chunk);
  void clearSkipped(const HeadOperands &operands) const;

  HeadShape shape;
  HeadPlan plan;
  FallibleTasks tasks;
  std::unique_ptr<HeadPanels> panels;
};

} // namespace

PreparedKernel HeadLoss::prepare(const KernelRequest &request) {
  std::unique_ptr<HeadLoss> kernel(new HeadLoss(request));
  QLORA_ASSIGN_OR_RETURN(
      kernel->panels, HeadPanels::create(kernel->plan, kernel->tasks.slots()));
  return std::unique_ptr<LibraryKernel>(std::move(kernel));
}

/// Rows in the type of the products, and zeros up to the rows of the last
/// product.
void HeadLoss::gather(const Chunk &chunk) const {
  const auto to = [&](int64_t row) {
    return elementAt(chunk.at<uint8_t>(plan.gathered), plan.productType,
                     row * plan.hidden);
  };
  parallelRanges(chunk.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      convertRun(shape.hiddenType,
                 elementAt(chunk.operands.hidden, shape.hiddenType,
                           chunk.at<int32_t>(plan.rowNumbers)[i] * shape.ldh),
                 plan.productType, to(i), plan.hidden);
  });
  const HeadBlock last = blockOf(chunk, chunk.blocks - 1);
  std::memset(to(chunk.rows), 0,
              static_cast<size_t>((panels->paddedRows(last.count) -
                                   last.count) *
                                  plan.hidden) *
                  (dtypeBits(plan.productType) / 8));
}

HeadBlock HeadLoss::blockOf(const Chunk &chunk, int64_t block) const {
  const int64_t first = block * plan.blockRows;
  return {elementAt(chunk.at<uint8_t>(plan.gathered), plan.productType,
                    first * plan.hidden),
          chunk.at<int32_t>(plan.rowNumbers) + first, chunk.operands.targets,
          chunk.operands.replaced, std::min(plan.blockRows, chunk.rows - first)};
}

Status HeadLoss::walk(const Chunk &chunk) {
  const KernelObserver *observer = chunk.args.observer;
  // An observer is called from one thread at a time.
  const bool isObserved = observer && observer->onLogits;
  const ScopedThreads threads(isObserved ? 1 : threadCount());
  return tasks.run(chunk.blocks * chunk.ranges, [&](int64_t task,
                                                    int64_t slot) {
    const int64_t range = task % chunk.ranges, all = plan.panels();
    const int64_t firstRow = task * plan.blockRows;
    float *gradient = chunk.at<float>(plan.gradients);
    if (gradient)
      gradient += firstRow * plan.hidden;
    return panels->walk(blockOf(chunk, task / chunk.ranges), chunk.operands.w,
                        all * range / chunk.ranges,
                        all * (range + 1) / chunk.ranges,
                        chunk.at<HeadRowState>(plan.states) + firstRow,
                        gradient, observer, slot, slotOf(chunk, slot));
  });
}

/// Loss and match of a row of the chunk, and its gradient.
void HeadLoss::merge(const Chunk &chunk, int64_t row) const {
  const auto stateOf = [&](int64_t range) -> const HeadRowState & {
    return chunk.at<HeadRowState>(plan.states)[taskRow(chunk, row, range)];
  };
  HeadRowState whole = stateOf(0);
  for (int64_t range = 1; range < chunk.ranges; ++range) {
    const HeadRowState &state = stateOf(range);
    whole.target += state.target;
    // torch.argmax: the first of equal maxima.
    if (state.maximum > whole.maximum) {
      whole.maximum = state.maximum;
      whole.best = state.best;
    }
  }
  whole.sum = 0;
  for (int64_t range = 0; range < chunk.ranges; ++range)
    whole.sum += stateOf(range).sum *
                 std::exp(double(stateOf(range).maximum) - whole.maximum);
  const double logSum = whole.maximum + std::log(whole.sum);
  const int32_t number = chunk.at<int32_t>(plan.rowNumbers)[row];
  chunk.at<double>(plan.logSums)[row] = logSum;
  chunk.at<double>(plan.rowLosses)[row] = logSum - whole.target;
  chunk.operands.correct[number] =
      whole.best == chunk.operands.targets[number];
  if (plan.hasGradient)
    mergeGradient(chunk, row,
                  std::expm1(whole.target - logSum) *
                      panels->slopeAt(static_cast<float>(whole.target)),
                  logSum);
}

/// The tasks' sums, each by its factor, and the target's word by softmax - 1.
void HeadLoss::mergeGradient(const Chunk &chunk, int64_t row,
                             double targetGradient, double logSum) const {
  float *const sum =
      chunk.at<float>(plan.gradients) + taskRow(chunk, row, 0) * plan.hidden;
  for (int64_t range = 0; range < chunk.ranges; ++range) {
    const int64_t at = taskRow(chunk, row, range);
    const HeadRowState &state = chunk.at<HeadRowState>(plan.states)[at];
    const auto factor = float(std::exp(state.maximum - logSum));
    if (range == 0)
      scaleRun(sum, plan.hidden, factor);
    else
      addScaled(factor, QLORA_DTYPE_F32,
                chunk.at<float>(plan.gradients) + at * plan.hidden, sum,
                plan.hidden);
  }
  const int32_t number = chunk.at<int32_t>(plan.rowNumbers)[row];
  const int64_t target = chunk.operands.targets[number];
  if (chunk.operands.replaced.in(target, 1).empty())
    addScaled(float(targetGradient), shape.weightType,
              elementAt(chunk.operands.w, shape.weightType,
                        target * plan.hidden),
              sum, plan.hidden);
  setReplacedGradient(chunk.operands, number, logSum);
  narrow(sum, shape.dhiddenType,
         elementAt(chunk.operands.dhidden, shape.dhiddenType,
                   number * shape.lddh),
         plan.hidden);
}

/// Softmax, less 1 at the target, of the logits that are given.
void HeadLoss::setReplacedGradient(const HeadOperands &operands,
                                   int64_t number, double logSum) const {
  for (const auto word : operands.replaced.words) {
    const float logit = panels->capped(operands.replaced.at(number, word));
    const double below = logit - logSum;
    const double gradient = word.number == operands.targets[number]
                                ? std::expm1(below)
                                : std::exp(below);
    storeElement(shape.columnsType, operands.dcolumns,
                 number * shape.replaced + word.column,
                 float(gradient * panels->slopeAt(logit)));
  }
}

/// Logits are computed again: now what softmax divides by is known.
Status HeadLoss::addWeightGradient(const Chunk &chunk) {
  return tasks.run(plan.panels(), [&](int64_t panel, int64_t slot) -> Status {
    for (int64_t block = 0; block < chunk.blocks; ++block)
      QLORA_RETURN_IF_ERROR(panels->addWeightGradient(
          blockOf(chunk, block), chunk.operands.w, panel,
          chunk.at<double>(plan.logSums) + block * plan.blockRows,
          chunk.operands.dw, slot, slotOf(chunk, slot)));
    return Status::ok();
  });
}

Status HeadLoss::runChunk(const Chunk &chunk) {
  gather(chunk);
  QLORA_RETURN_IF_ERROR(walk(chunk));
  parallelRanges(chunk.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      merge(chunk, row);
  });
  if (plan.hasWeightGradient && chunk.operands.dw)
    return addWeightGradient(chunk);
  return Status::ok();
}

void HeadLoss::clearSkipped(const HeadOperands &operands) const {
  const auto clear = [](void *matrix, qlora_dtype type, int64_t first,
                        int64_t count) {
    if (matrix)
      std::memset(elementAt(matrix, type, first), 0,
                  static_cast<size_t>(count * (dtypeBits(type) / 8)));
  };
  for (int64_t row = 0; row < shape.rows; ++row) {
    if (operands.targets[row] != kNoTarget)
      continue;
    operands.correct[row] = 0;
    clear(operands.dhidden, shape.dhiddenType, row * shape.lddh, shape.hidden);
    clear(operands.dcolumns, shape.columnsType, row * shape.replaced,
          shape.replaced);
  }
}

Status HeadLoss::run(const LibraryKernelArgs &args) {
  QLORA_ASSIGN_OR_RETURN(const HeadOperands operands,
                         HeadOperands::of(args, shape, plan.hasGradient));
  clearSkipped(operands);
  auto *const rowNumbers = plan.rowNumbers.in<int32_t>(args.buffers.back());
  auto *const rowLosses = plan.rowLosses.in<double>(args.buffers.back());
  std::vector<double> losses(static_cast<size_t>(shape.lines));
  std::vector<int64_t> labels(losses.size());
  for (int64_t row = 0; row < shape.rows;) {
    int64_t count = 0;
    for (; row < shape.rows && count < plan.chunkRows; ++row)
      if (operands.targets[row] != kNoTarget)
        rowNumbers[count++] = static_cast<int32_t>(row);
    if (count == 0)
      break;
    const int64_t blocks = plan.blocks(count);
    QLORA_RETURN_IF_ERROR(runChunk(
        {args, operands, count, blocks, plan.ranges(blocks)}));
    for (int64_t i = 0; i < count; ++i) {
      losses[shape.lineOf(rowNumbers[i])] += rowLosses[i];
      ++labels[shape.lineOf(rowNumbers[i])];
    }
  }
  std::ranges::copy(losses, operands.loss);
  std::ranges::copy(labels, operands.count);
  return Status::ok();
}

PreparedKernel head_loss::chunked::prepare(const KernelRequest &request,
                                           uint64_t) {
  return HeadLoss::prepare(request);
}

PreparedKernel head_loss_grad::chunked::prepare(const KernelRequest &request,
                                                uint64_t) {
  return HeadLoss::prepare(request);
}

} // namespace cpu
} // namespace qlora
