// SPDX-License-Identifier: MIT

#include "runtime/Kernels/Cpu/HeadOperands.h"

#include <algorithm>
#include <cmath>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora {

HeadShape HeadShape::of(const KernelRequest &r) {
  const bool hasGradient = r.op->name == "head_loss_grad";
  return {r.constant("rows"),
          r.constant("hidden_size"),
          r.constant("vocab"),
          r.constant("ldh"),
          hasGradient ? r.constant("lddh") : 0,
          r.constant("lines"),
          static_cast<float>(r.constantAsDouble("cap")),
          r.type("hidden"),
          r.type("w"),
          hasGradient ? r.type("dhidden") : QLORA_DTYPE_F32,
          r.type("columns"),
          r.constant("replaced")};
}

HeadPiece HeadPiece::of(const qlora_step_block &step, int64_t piece,
                        int64_t vocab) {
  const int64_t first = std::min(step.shard * piece, vocab);
  return {first, std::min(piece, vocab - first), vocab};
}

std::span<const ReplacedLogits::Word>
ReplacedLogits::in(int64_t first, int64_t count) const {
  const auto from = [&](int64_t number) {
    return std::ranges::lower_bound(words, number, {}, &Word::number);
  };
  return {from(first), from(first + count)};
}

float ReplacedLogits::at(int64_t row, Word word) const {
  return loadElement(type, columns,
                     row * static_cast<int64_t>(words.size()) + word.column);
}

static Status findReplaced(const HeadShape &shape, const float *words,
                           ReplacedLogits &replaced) {
  for (int64_t column = 0; column < shape.replaced; ++column) {
    const float word = words[column];
    if (!(word >= 0 && word < static_cast<float>(shape.vocab)) ||
        word != std::floor(word))
      return Status::error(
          StatusCode::kInternal,
          "head_loss: replaces token {}, outside of the vocabulary of {}", word,
          shape.vocab);
    replaced.words.push_back({static_cast<int64_t>(word), column});
  }
  std::ranges::sort(replaced.words);
  const auto twice = std::ranges::adjacent_find(replaced.words, {},
                                                &ReplacedLogits::Word::number);
  if (twice != replaced.words.end())
    return Status::error(StatusCode::kInternal,
                         "head_loss: replaces token {} twice", twice->number);
  return Status::ok();
}

void sumWords(const HeadInputs &inputs, qlora_dtype weightType, int64_t hidden,
              float *sums) {
  constexpr int64_t kRanges = plans::kHeadTasks;
  const int64_t words = inputs.piece.words;
  const auto add = [&](float factor, int64_t word, float *sum) {
    addScaled(factor, weightType,
              elementAt(inputs.w, weightType, word * hidden), sum, hidden);
  };
  parallelRanges(kRanges, 1, [&](int64_t begin, int64_t end) {
    for (int64_t range = begin; range < end; ++range) {
      float *const sum = sums + range * hidden;
      std::fill_n(sum, hidden, 0.0f);
      for (int64_t word = words * range / kRanges;
           word < words * (range + 1) / kRanges; ++word)
        add(1, word, sum);
    }
  });
  for (int64_t range = 1; range < kRanges; ++range)
    addScaled(1, QLORA_DTYPE_F32, sums + range * hidden, sums, hidden);
  for (const auto word : inputs.replaced.words)
    add(-1, word.number, sums);
}

Status checkTargets(std::string_view op, std::span<const int32_t> targets,
                    int64_t vocab) {
  for (size_t row = 0; row < targets.size(); ++row) {
    const int32_t target = targets[row];
    if (target != kNoTarget && (target < 0 || target >= vocab))
      return Status::error(StatusCode::kInternal,
                           "{}: row {} has target {}, outside of the "
                           "vocabulary of {}",
                           op, row, target, vocab);
  }
  return Status::ok();
}

StatusOr<HeadOperands> HeadOperands::of(const LibraryKernelArgs &args,
                                        const HeadShape &shape,
                                        bool hasGradient) {
  HeadOperands operands = {{args.buffers[0],
                            args.buffers[1],
                            bufferOf<const int32_t>(args, 2),
                            {0, shape.vocab, shape.vocab}},
                           bufferOf<float>(args, 3),
                           bufferOf<float>(args, 4),
                           bufferOf<int32_t>(args, 5)};
  size_t next = 6;
  if (hasGradient) {
    operands.dhidden = args.buffers[next++];
    operands.dw = bufferOf<float>(args, next++);
  }
  operands.replaced.columns = args.buffers[next++];
  operands.replaced.type = shape.columnsType;
  QLORA_RETURN_IF_ERROR(findReplaced(shape, bufferOf<const float>(args, next++),
                                     operands.replaced));
  if (hasGradient)
    operands.dcolumns = args.buffers[next];
  QLORA_RETURN_IF_ERROR(checkTargets(
      "head_loss", {operands.targets, static_cast<size_t>(shape.rows)},
      shape.vocab));
  return operands;
}

} // namespace qlora
