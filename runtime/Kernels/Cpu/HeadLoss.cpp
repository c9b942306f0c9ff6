// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad, chunked: merges the tasks' results for each row
// into the row's loss and gradient.

#include <algorithm>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/HeadWalk.h"

namespace qlora::cpu {

namespace {
class HeadLoss final : public LibraryKernel {
public:
  static PreparedKernel prepare(const KernelRequest &request);
  Status run(const LibraryKernelArgs &args) override;

private:
  explicit HeadLoss(const KernelRequest &request)
      : shape(HeadShape::of(request)), loss(TokenLoss::of(request)),
        walk(request) {}

  void merge(const HeadChunk &chunk, const HeadOperands &operands,
             int64_t row) const;
  void mergeGradient(const HeadChunk &chunk, const HeadOperands &operands,
                     int64_t row, const HeadRowState &whole) const;
  void setReplacedGradient(const HeadOperands &operands, int64_t number,
                           const HeadRowState &whole) const;
  Status runChunk(const HeadChunk &chunk, const HeadOperands &operands);
  void clearSkipped(const HeadOperands &operands) const;

  HeadShape shape;
  TokenLoss loss;
  HeadWalk walk;
};
} // namespace

PreparedKernel HeadLoss::prepare(const KernelRequest &request) {
  std::unique_ptr<HeadLoss> kernel(new HeadLoss(request));
  QLORA_RETURN_IF_ERROR(kernel->walk.prepare());
  return std::unique_ptr<LibraryKernel>(std::move(kernel));
}

/// Merges the tasks' results for a row of the chunk: loss, `correct` and, if
/// requested, the gradient.
void HeadLoss::merge(const HeadChunk &chunk, const HeadOperands &operands,
                     int64_t row) const {
  const HeadRowState whole = walk.stateOf(chunk, row);
  const int32_t number = walk.numberOf(chunk, row);
  chunk.at<double>(walk.plan.logSums)[row] = logSumOf(whole);
  chunk.at<double>(walk.plan.rowLosses)[row] = loss.loss(whole);
  if (double *const scales = chunk.at<double>(walk.plan.scales))
    scales[row] = loss.scale(whole);
  operands.correct[number] = whole.best == operands.targets[number];
  if (walk.plan.hasGradient)
    mergeGradient(chunk, operands, row, whole);
}

/// Sums the tasks' gradients of a row, and adds the target's and smoothing's.
void HeadLoss::mergeGradient(const HeadChunk &chunk,
                             const HeadOperands &operands, int64_t row,
                             const HeadRowState &whole) const {
  float *const sum =
      walk.sumGradients(chunk, row, logSumOf(whole) - loss.logScale(whole));
  const int32_t number = walk.numberOf(chunk, row);
  const int64_t target = operands.targets[number];
  if (operands.replaced.in(target, 1).empty())
    addScaled(float(loss.targetGradient(whole, shape.cap)), shape.weightType,
              elementAt(operands.w, shape.weightType, target * shape.hidden),
              sum, shape.hidden);
  const double ofLogits = -loss.share() * loss.scale(whole);
  if (const float *const words = chunk.at<float>(walk.plan.wordSums))
    addScaled(float(ofLogits), QLORA_DTYPE_F32, words, sum, shape.hidden);
  if (chunk.at<float>(walk.plan.logitGradients))
    walk.addLogitGradients(chunk, row, ofLogits, sum);
  setReplacedGradient(operands, number, whole);
  narrow(sum, shape.dhiddenType,
         elementAt(operands.dhidden, shape.dhiddenType, number * shape.lddh),
         shape.hidden);
}

/// Writes the gradient of the replaced logits.
void HeadLoss::setReplacedGradient(const HeadOperands &operands, int64_t number,
                                   const HeadRowState &whole) const {
  for (const auto word : operands.replaced.words) {
    const float logit = walk.capped(operands.replaced.at(number, word));
    const double gradient =
        loss.scale(whole) * loss.slope(logit, logSumOf(whole),
                                       word.number == operands.targets[number]);
    storeElement(shape.columnsType, operands.dcolumns,
                 number * shape.replaced + word.column,
                 float(gradient * capSlope(logit, shape.cap)));
  }
}

Status HeadLoss::runChunk(const HeadChunk &chunk,
                          const HeadOperands &operands) {
  parallelRanges(chunk.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      merge(chunk, operands, row);
  });
  if (walk.plan.hasWeightGradient && operands.dw)
    return walk.addWeightGradient(chunk, chunk.at<double>(walk.plan.logSums),
                                  chunk.at<double>(walk.plan.scales),
                                  operands.dw);
  return Status::ok();
}

void HeadLoss::clearSkipped(const HeadOperands &operands) const {
  const auto clear = [](void *matrix, qlora_dtype type, int64_t first,
                        int64_t count) {
    if (matrix)
      clearRun(type, elementAt(matrix, type, first), count);
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
                         HeadOperands::of(args, shape, walk.plan.hasGradient));
  clearSkipped(operands);
  if (float *const sums = walk.plan.wordSums.in<float>(args.buffers.back()))
    sumWords(operands, shape.weightType, shape.hidden, sums);
  std::vector<double> losses(static_cast<size_t>(shape.lines));
  std::vector<int64_t> labels(losses.size());
  QLORA_RETURN_IF_ERROR(
      walk.forChunks(args, operands, [&](const HeadChunk &chunk) -> Status {
        QLORA_RETURN_IF_ERROR(runChunk(chunk, operands));
        for (int64_t i = 0; i < chunk.rows; ++i) {
          const int64_t line = shape.lineOf(walk.numberOf(chunk, i));
          losses[line] += chunk.at<double>(walk.plan.rowLosses)[i];
          ++labels[line];
        }
        return Status::ok();
      }));
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

} // namespace qlora::cpu
