// SPDX-License-Identifier: MIT

// Plain head_part and head_merge: one labelled row after another.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/HeadMerge.h"

namespace qlora::cpu {

namespace {

struct PartShape {
  int64_t rows, hidden, vocab, piece, ldh;
  double cap, smoothing;
  qlora_dtype hiddenType, weightType;

  static PartShape of(const KernelRequest &r) {
    return {r.constant("rows"),
            r.constant("hidden_size"),
            r.constant("vocab"),
            r.constant("piece"),
            r.constant("ldh"),
            r.constantAsDouble("cap"),
            r.constantAsDouble("smoothing"),
            r.type("hidden"),
            r.type("w")};
  }
};

/// One labelled row with the token ids of the vocabulary shard.
struct PartRow {
  const PartShape &shape;
  const LibraryKernelArgs &args;
  int64_t row, first, words;

  double weight(int64_t word, int64_t i) const {
    return loadElement(shape.weightType, args.buffers[1],
                       word * shape.hidden + i);
  }
  float logit(int64_t word) const {
    double sum = 0;
    for (int64_t i = 0; i < shape.hidden; ++i)
      sum += weight(word, i) * loadElement(shape.hiddenType, args.buffers[0],
                                           row * shape.ldh + i);
    return float(shape.cap == 0 ? sum : shape.cap * std::tanh(sum / shape.cap));
  }
};

} // namespace

static HeadRowState computePart(const PartRow &r, float *gradient) {
  const PartShape &shape = r.shape;
  const int64_t target = bufferOf<const int32_t>(r.args, 2)[r.row] - r.first;
  std::vector<float> logits;
  for (int64_t word = 0; word < r.words; ++word)
    logits.push_back(r.logit(word));
  HeadRowState state = emptyState();
  if (logits.empty()) {
    if (gradient)
      std::fill_n(gradient, shape.hidden, 0.0f);
    return state;
  }
  const auto number = static_cast<int32_t>(r.row);
  if (r.args.observer && r.args.observer->onLogits)
    r.args.observer->onLogits(
        {{&number, 1}, logits.data(), r.first, r.words, shape.vocab});
  const auto largest = std::max_element(logits.begin(), logits.end());
  state.maximum = *largest;
  state.best = static_cast<int32_t>(r.first + (largest - logits.begin()));
  if (target >= 0 && target < r.words)
    state.target = logits[target];
  state.total = float(std::accumulate(logits.begin(), logits.end(), 0.0));
  std::vector<double> sums(static_cast<size_t>(shape.hidden));
  for (int64_t word = 0; word < r.words; ++word) {
    const double factor = std::exp(double(logits[word]) - state.maximum);
    state.sum += factor;
    const double t = shape.cap == 0 ? 0 : logits[word] / shape.cap;
    for (int64_t i = 0; word != target && gradient && i < shape.hidden; ++i)
      sums[i] += factor * (1 - t * t) * r.weight(word, i);
  }
  if (gradient)
    std::copy(sums.begin(), sums.end(), gradient);
  return state;
}

PreparedKernel head_part::reference::prepare(const KernelRequest &request,
                                             uint64_t) {
  const PartShape shape = PartShape::of(request);
  return makeKernel([shape](const LibraryKernelArgs &args) -> Status {
    const auto *targets = bufferOf<const int32_t>(args, 2);
    QLORA_RETURN_IF_ERROR(checkTargets(
        "head_part", {targets, static_cast<size_t>(shape.rows)}, shape.vocab));
    const HeadPiece piece = HeadPiece::of(*args.step, shape.piece, shape.vocab);
    auto *gradients = bufferOf<float>(args, 4);
    for (int64_t row = 0; row < shape.rows; ++row) {
      float *gradient = gradients ? gradients + row * shape.hidden : nullptr;
      HeadRowState state = {};
      if (targets[row] != kNoTarget)
        state =
            computePart({shape, args, row, piece.first, piece.words}, gradient);
      else if (gradient)
        std::fill_n(gradient, shape.hidden, 0.0f);
      storeState(state, bufferOf<float>(args, 3), row, shape.smoothing);
    }
    return Status::ok();
  });
}

namespace {
/// One labelled row, with the states of all ranks.
struct MergedRow {
  const HeadMergeShape &shape;
  const HeadMergeOperands &operands;
  int64_t row;

  HeadRowState state(int64_t shard) const {
    return operands.stateOf(shape, shard, row);
  }
  /// Returns the log of the sum of the exponentials of all logits.
  double logSum() const {
    double most = state(0).maximum, sum = 0;
    for (int64_t shard = 1; shard < shape.shards; ++shard)
      most = std::max<double>(most, state(shard).maximum);
    for (int64_t shard = 0; shard < shape.shards; ++shard)
      sum += state(shard).sum * std::exp(state(shard).maximum - most);
    return most + std::log(sum);
  }
  double target() const {
    double logit = 0;
    for (int64_t shard = 0; shard < shape.shards; ++shard)
      logit += state(shard).target;
    return logit;
  }
  int64_t best() const {
    int64_t first = 0;
    for (int64_t shard = 1; shard < shape.shards; ++shard)
      if (state(shard).maximum > state(first).maximum)
        first = shard;
    return state(first).best;
  }
  /// Returns the factor of the loss and its gradient.
  double scale(double lse) const {
    return shape.loss.hasOwnProbability ? std::exp(target() - lse) : 1;
  }
  double loss(double lse) const {
    double total = 0;
    for (int64_t shard = 0; shard < shape.shards; ++shard)
      total += state(shard).total;
    const double smoothing = shape.loss.smoothing;
    return scale(lse) * ((1 - smoothing) * (lse - target()) +
                         smoothing * (lse - total / double(shape.vocab)));
  }
  double weight(int64_t word, int64_t i) const {
    return loadElement(shape.weightType, operands.w, word * shape.hidden + i);
  }
  double gradient(int64_t i, double lse) const;
};
} // namespace

double MergedRow::gradient(int64_t i, double lse) const {
  const int64_t own = operands.targets[row] - operands.piece.first;
  const double smoothing = shape.loss.smoothing;
  double sum = std::exp(state(operands.shard).maximum - lse) *
               operands.gradient[row * shape.hidden + i];
  for (int64_t word = 0; smoothing != 0 && word < operands.piece.words; ++word)
    sum -= smoothing / double(shape.vocab) * weight(word, i);
  if (own < 0 || own >= operands.piece.words)
    return scale(lse) * sum;
  const double t = shape.cap == 0 ? 0 : target() / shape.cap;
  sum +=
      (std::exp(target() - lse) - 1 + smoothing) * (1 - t * t) * weight(own, i);
  return scale(lse) * sum;
}

static void mergePlainly(const HeadMergeShape &shape,
                         const HeadMergeOperands &operands) {
  std::vector<double> losses(static_cast<size_t>(shape.lines));
  std::fill_n(operands.count, shape.lines, 0.0f);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const MergedRow merged = {shape, operands, row};
    const int64_t own = row - shape.firstOf(operands.shard);
    const bool isOwn = own >= 0 && own < shape.own;
    const bool isLabelled = operands.targets[row] != kNoTarget;
    const double lse = isLabelled ? merged.logSum() : 0;
    if (isOwn)
      operands.correct[own] =
          isLabelled && merged.best() == operands.targets[row];
    if (isOwn && isLabelled) {
      losses[shape.lineOf(own)] += merged.loss(lse);
      ++operands.count[shape.lineOf(own)];
    }
    for (int64_t i = 0; operands.gradient && i < shape.hidden; ++i) {
      const auto sum = isLabelled ? float(merged.gradient(i, lse)) : 0.0f;
      if (operands.dhidden)
        storeElement(shape.dhiddenType, operands.dhidden, row * shape.lddh + i,
                     sum);
      else
        operands.gradient[row * shape.hidden + i] = sum;
    }
  }
  std::copy(losses.begin(), losses.end(), operands.loss);
}

PreparedKernel head_merge::reference::prepare(const KernelRequest &request,
                                              uint64_t) {
  const HeadMergeShape shape = HeadMergeShape::of(request);
  return makeKernel([shape](const LibraryKernelArgs &args) -> Status {
    QLORA_ASSIGN_OR_RETURN(const HeadMergeOperands operands,
                           HeadMergeOperands::of(args, shape));
    mergePlainly(shape, operands);
    return Status::ok();
  });
}

} // namespace qlora::cpu
