// SPDX-License-Identifier: MIT

// Common code of the LM head's CPU kernels: gathers chunks of labelled rows,
// runs tasks over blocks of these rows and panels of w (HeadPanels.h), and
// merges the tasks' results for each row.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADWALK_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADWALK_H

#include <memory>

#include "runtime/Kernels/Cpu/HeadPanels.h"
#include "runtime/Kernels/Cpu/HeadStates.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

/// A chunk of labelled rows in one run. Row indices are in the workspace.
struct HeadChunk {
  const LibraryKernelArgs &args;
  const HeadInputs &inputs;
  int64_t rows, blocks, ranges;

  template <typename T> T *at(plans::Part part) const {
    return part.in<T>(args.buffers.back());
  }
};

class HeadWalk {
public:
  explicit HeadWalk(const KernelRequest &request);
  Status prepare();

  /// Processes chunks of the labelled rows in order. Calls task(chunk) after
  /// the chunk's states and gradients are computed.
  template <typename Task>
  Status forChunks(const LibraryKernelArgs &args, const HeadInputs &inputs,
                   Task task);

  int32_t numberOf(const HeadChunk &chunk, int64_t row) const {
    return chunk.at<int32_t>(plan.rowNumbers)[row];
  }
  /// Merges the tasks' states of a row of the chunk; `best` indexes rows of w.
  HeadRowState stateOf(const HeadChunk &chunk, int64_t row) const;
  /// Sums the tasks' gradients of a row, each times e^(its maximum - base), in
  /// place in the first task's gradient. Returns the sum's address.
  float *sumGradients(const HeadChunk &chunk, int64_t row, double base) const;
  /// Adds `factor` times the sum of the tasks' gradients of a row's logits.
  void addLogitGradients(const HeadChunk &chunk, int64_t row, double factor,
                         float *sum) const;
  /// Adds the gradient of all blocks of a chunk to dw, which is not null.
  /// `logSums` and `scales` are those of HeadPanels::addWeightGradient.
  Status addWeightGradient(const HeadChunk &chunk, const double *logSums,
                           const double *scales, float *dw);

  const HeadPlan plan;
  float capped(float logit) const { return panels->capped(logit); }

private:
  void gather(const HeadChunk &chunk) const;
  Status walk(const HeadChunk &chunk);
  HeadBlock blockOf(const HeadChunk &chunk, int64_t block) const;
  /// Returns the index of a row in the states and gradients of a range's task.
  int64_t taskRow(const HeadChunk &chunk, int64_t row, int64_t range) const {
    const int64_t task = row / plan.blockRows * chunk.ranges + range;
    return task * plan.blockRows + row % plan.blockRows;
  }
  uint8_t *slotOf(const HeadChunk &chunk, int64_t slot) const {
    return chunk.at<uint8_t>(plan.slots) + slot * int64_t(plan.slotBytes);
  }

  int64_t rows, ldh;
  qlora_dtype hiddenType;
  FallibleTasks tasks;
  std::unique_ptr<HeadPanels> panels;
};

template <typename Task>
Status HeadWalk::forChunks(const LibraryKernelArgs &args,
                           const HeadInputs &inputs, Task task) {
  auto *const rowNumbers = plan.rowNumbers.in<int32_t>(args.buffers.back());
  for (int64_t row = 0; row < rows;) {
    int64_t count = 0;
    for (; row < rows && count < plan.chunkRows; ++row)
      if (inputs.targets[row] != kNoTarget)
        rowNumbers[count++] = static_cast<int32_t>(row);
    if (count == 0)
      break;
    const int64_t blocks = plan.blocks(count);
    const HeadChunk chunk = {args, inputs, count, blocks, plan.ranges(blocks)};
    gather(chunk);
    QLORA_RETURN_IF_ERROR(walk(chunk));
    QLORA_RETURN_IF_ERROR(task(chunk));
  }
  return Status::ok();
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADWALK_H
