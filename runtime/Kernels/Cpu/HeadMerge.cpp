// SPDX-License-Identifier: MIT

// head_merge: merges all ranks' states of each row; see HeadStates.h.

#include "runtime/Kernels/Cpu/HeadMerge.h"

#include <algorithm>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"

namespace qlora {

HeadMergeShape HeadMergeShape::of(const KernelRequest &r) {
  return {r.constant("rows"),   r.constant("hidden_size"),
          r.constant("vocab"),  r.constant("piece"),
          r.constant("shards"), r.constant("lddh"),
          r.constant("lines"),  r.constant("own"),
          static_cast<float>(r.constantAsDouble("cap")),
          r.type("w"),          r.type("dhidden"),
          TokenLoss::of(r)};
}

StatusOr<HeadMergeOperands> HeadMergeOperands::of(const LibraryKernelArgs &args,
                                                  const HeadMergeShape &shape) {
  enum Operand {
    kStates,
    kTargets,
    kLoss,
    kCount,
    kCorrect,
    kGradient,
    kW,
    kDHidden
  };
  const int64_t shard = args.step->shard;
  if (shard >= shape.shards)
    return Status::error(
        StatusCode::kInternal,
        "head_merge: the step is for shard {}, but there are {}", shard,
        shape.shards);
  const auto *targets = bufferOf<const int32_t>(args, kTargets);
  QLORA_RETURN_IF_ERROR(checkTargets(
      "head_merge", {targets, static_cast<size_t>(shape.rows)}, shape.vocab));
  return HeadMergeOperands{bufferOf<const float>(args, kStates),
                           targets,
                           bufferOf<float>(args, kLoss),
                           bufferOf<float>(args, kCount),
                           bufferOf<int32_t>(args, kCorrect),
                           bufferOf<float>(args, kGradient),
                           args.buffers[kW],
                           args.buffers[kDHidden],
                           shard,
                           HeadPiece::of(*args.step, shape.piece, shape.vocab)};
}

namespace cpu {

namespace {
/// One run of head_merge. `losses` has a value for each of the rank's rows.
/// `wordSums` is null without smoothing.
struct Merge {
  const HeadMergeShape &shape;
  const HeadMergeOperands &operands;
  double *losses;
  float *wordSums;

  void mergeRow(int64_t row) const;
  void mergeGradient(int64_t row, const HeadRowState &whole) const;
  void clearGradient(int64_t row) const;
  void sumLosses() const;
  /// Whether the rank owns a row. Sets `own` to its index in the rank's rows.
  bool isOwn(int64_t row, int64_t &own) const {
    own = row - shape.firstOf(operands.shard);
    return own >= 0 && own < shape.own;
  }
};
} // namespace

void Merge::clearGradient(int64_t row) const {
  if (operands.dhidden)
    clearRun(shape.dhiddenType,
             elementAt(operands.dhidden, shape.dhiddenType, row * shape.lddh),
             shape.hidden);
  else if (operands.gradient)
    clearRun(QLORA_DTYPE_F32, operands.gradient + row * shape.hidden,
             shape.hidden);
}

void Merge::mergeGradient(int64_t row, const HeadRowState &whole) const {
  float *const sum = operands.gradient + row * shape.hidden;
  const HeadRowState mine = operands.stateOf(shape, operands.shard, row);
  scaleRun(sum, shape.hidden,
           float(std::exp(mine.maximum - logSumOf(whole) +
                          shape.loss.logScale(whole))));
  const int64_t target = operands.targets[row];
  if (operands.piece.has(target))
    addScaled(float(shape.loss.targetGradient(whole, shape.cap)),
              shape.weightType,
              elementAt(operands.w, shape.weightType,
                        (target - operands.piece.first) * shape.hidden),
              sum, shape.hidden);
  if (wordSums)
    addScaled(float(-shape.loss.share() * shape.loss.scale(whole)),
              QLORA_DTYPE_F32, wordSums, sum, shape.hidden);
  if (operands.dhidden)
    narrow(sum, shape.dhiddenType,
           elementAt(operands.dhidden, shape.dhiddenType, row * shape.lddh),
           shape.hidden);
}

void Merge::mergeRow(int64_t row) const {
  int64_t own = 0;
  const bool isMine = isOwn(row, own);
  if (operands.targets[row] == kNoTarget) {
    if (isMine)
      operands.correct[own] = 0;
    return clearGradient(row);
  }
  const HeadRowState whole = mergedState(shape.shards, [&](int64_t shard) {
    return operands.stateOf(shape, shard, row);
  });
  if (isMine) {
    losses[own] = shape.loss.loss(whole);
    operands.correct[own] = whole.best == operands.targets[row];
  }
  if (operands.gradient)
    mergeGradient(row, whole);
}

/// Sums the losses of each sequence, in the order of the rows.
void Merge::sumLosses() const {
  const int64_t first = shape.firstOf(operands.shard);
  std::vector<double> sums(static_cast<size_t>(shape.lines));
  std::vector<int64_t> labels(sums.size());
  for (int64_t own = 0; own < shape.own; ++own) {
    if (operands.targets[first + own] == kNoTarget)
      continue;
    sums[shape.lineOf(own)] += losses[own];
    ++labels[shape.lineOf(own)];
  }
  std::ranges::copy(sums, operands.loss);
  std::ranges::copy(labels, operands.count);
}

PreparedKernel head_merge::rows::prepare(const KernelRequest &request,
                                         uint64_t) {
  const HeadMergeShape shape = HeadMergeShape::of(request);
  const plans::HeadMergePlan plan = plans::HeadMergePlan::of(request);
  return makeKernel([=](const LibraryKernelArgs &args) -> Status {
    QLORA_ASSIGN_OR_RETURN(const HeadMergeOperands operands,
                           HeadMergeOperands::of(args, shape));
    void *const workspace = args.buffers.back();
    const Merge merge = {shape, operands, plan.losses.in<double>(workspace),
                         plan.wordSums.in<float>(workspace)};
    if (merge.wordSums)
      sumWords({.w = operands.w, .piece = operands.piece}, shape.weightType,
               shape.hidden, merge.wordSums);
    parallelRanges(shape.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        merge.mergeRow(row);
    });
    merge.sumLosses();
    return Status::ok();
  });
}

} // namespace cpu
} // namespace qlora
