// SPDX-License-Identifier: MIT

// head_part, chunked: computes the states of rows over one rank's vocabulary
// shard. Every rank merges them in head_merge.

#include <cstring>

#include "runtime/Kernels/Cpu/HeadWalk.h"

namespace qlora::cpu {

namespace {
struct HeadPart final : LibraryKernel {
  /// Buffers by name; gradient is null if it is absent.
  struct Operands {
    HeadInputs inputs;
    float *states, *gradient;
  };

  explicit HeadPart(const KernelRequest &request)
      : rows(request.constant("rows")), piece(request.constant("piece")),
        vocab(request.constant("vocab")), walk(request) {}
  Status run(const LibraryKernelArgs &args) override;
  void clear(const Operands &operands) const;
  void finishRow(const HeadChunk &chunk, const Operands &operands,
                 int64_t row) const;

  int64_t rows, piece, vocab;
  HeadWalk walk;
};
} // namespace

PreparedKernel head_part::chunked::prepare(const KernelRequest &request,
                                           uint64_t) {
  auto kernel = std::make_unique<HeadPart>(request);
  QLORA_RETURN_IF_ERROR(kernel->walk.prepare());
  return std::unique_ptr<LibraryKernel>(std::move(kernel));
}

/// Writes states and zero gradients of the rows that no task processes: rows
/// without a target, and all rows if the shard has no token ids.
void HeadPart::clear(const Operands &operands) const {
  const int64_t hidden = walk.plan.hidden;
  const bool hasWords = operands.inputs.piece.words > 0;
  parallelRanges(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool hasTarget = operands.inputs.targets[row] != kNoTarget;
      if (hasTarget && hasWords)
        continue;
      storeState(hasTarget ? emptyState() : HeadRowState{}, operands.states,
                 row, walk.plan.smoothing);
      if (operands.gradient)
        std::memset(operands.gradient + row * hidden, 0,
                    static_cast<size_t>(hidden) * sizeof(float));
    }
  });
}

void HeadPart::finishRow(const HeadChunk &chunk, const Operands &operands,
                         int64_t row) const {
  const int64_t hidden = walk.plan.hidden;
  const int32_t number = walk.numberOf(chunk, row);
  HeadRowState state = walk.stateOf(chunk, row);
  if (operands.gradient)
    std::memcpy(operands.gradient + number * hidden,
                walk.sumGradients(chunk, row, state.maximum),
                static_cast<size_t>(hidden) * sizeof(float));
  state.best += static_cast<int32_t>(operands.inputs.piece.first);
  storeState(state, operands.states, number, walk.plan.smoothing);
}

Status HeadPart::run(const LibraryKernelArgs &args) {
  enum Operand { kHidden, kW, kTargets, kStates, kGradient };
  const Operands operands = {{args.buffers[kHidden], args.buffers[kW],
                              bufferOf<const int32_t>(args, kTargets),
                              HeadPiece::of(*args.step, piece, vocab)},
                             bufferOf<float>(args, kStates),
                             bufferOf<float>(args, kGradient)};
  QLORA_RETURN_IF_ERROR(checkTargets(
      "head_part", {operands.inputs.targets, static_cast<size_t>(rows)},
      vocab));
  clear(operands);
  if (operands.inputs.piece.words == 0)
    return Status::ok();
  return walk.forChunks(
      args, operands.inputs, [&](const HeadChunk &chunk) -> Status {
        parallelRanges(chunk.rows, 16, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row)
            finishRow(chunk, operands, row);
        });
        return Status::ok();
      });
}

} // namespace qlora::cpu
