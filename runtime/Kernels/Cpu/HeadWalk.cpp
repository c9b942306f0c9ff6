// SPDX-License-Identifier: MIT

#include "runtime/Kernels/Cpu/HeadWalk.h"

#include <algorithm>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Softmax.h"

namespace qlora {

HeadWalk::HeadWalk(const KernelRequest &request)
    : plan(HeadPlan::of(request)), rows(request.constant("rows")),
      ldh(request.constant("ldh")), hiddenType(request.type("hidden")),
      tasks(plans::kGemmSlots) {}

Status HeadWalk::prepare() {
  QLORA_ASSIGN_OR_RETURN(panels, HeadPanels::create(plan, tasks.slots()));
  return Status::ok();
}

/// Gathers the chunk's rows in the type of the GEMMs. Zeros follow if the last
/// block's GEMM has more rows.
void HeadWalk::gather(const HeadChunk &chunk) const {
  const auto to = [&](int64_t row) {
    return elementAt(chunk.at<uint8_t>(plan.gathered), plan.productType,
                     row * plan.hidden);
  };
  parallelRanges(chunk.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      convertRun(
          hiddenType,
          elementAt(chunk.inputs.hidden, hiddenType, numberOf(chunk, i) * ldh),
          plan.productType, to(i), plan.hidden);
  });
  const HeadBlock last = blockOf(chunk, chunk.blocks - 1);
  clearRun(plan.productType, to(chunk.rows),
           (panels->paddedRows(last.count) - last.count) * plan.hidden);
}

HeadBlock HeadWalk::blockOf(const HeadChunk &chunk, int64_t block) const {
  const int64_t first = block * plan.blockRows;
  return {elementAt(chunk.at<uint8_t>(plan.gathered), plan.productType,
                    first * plan.hidden),
          chunk.at<int32_t>(plan.rowNumbers) + first, chunk.inputs,
          std::min(plan.blockRows, chunk.rows - first)};
}

Status HeadWalk::walk(const HeadChunk &chunk) {
  const KernelObserver *observer = chunk.args.observer;
  // An observer is called from one thread at a time.
  const bool isObserved = observer && observer->onLogits;
  const ScopedThreads threads(isObserved ? 1 : threadCount());
  const int64_t all = plan.panels(chunk.inputs.piece.words);
  return tasks.run(chunk.blocks * chunk.ranges, [&](int64_t task,
                                                    int64_t slot) {
    const int64_t range = task % chunk.ranges;
    const int64_t firstRow = task * plan.blockRows;
    const auto rowsOf = [&](plans::Part part) {
      float *const rows = chunk.at<float>(part);
      return rows ? rows + firstRow * plan.hidden : nullptr;
    };
    return panels->walk(blockOf(chunk, task / chunk.ranges),
                        all * range / chunk.ranges,
                        all * (range + 1) / chunk.ranges,
                        {chunk.at<HeadRowState>(plan.states) + firstRow,
                         rowsOf(plan.gradients), rowsOf(plan.logitGradients)},
                        observer, slot, slotOf(chunk, slot));
  });
}

HeadRowState HeadWalk::stateOf(const HeadChunk &chunk, int64_t row) const {
  return mergedState(chunk.ranges, [&](int64_t range) -> const HeadRowState & {
    return chunk.at<HeadRowState>(plan.states)[taskRow(chunk, row, range)];
  });
}

float *HeadWalk::sumGradients(const HeadChunk &chunk, int64_t row,
                              double base) const {
  float *const sum =
      chunk.at<float>(plan.gradients) + taskRow(chunk, row, 0) * plan.hidden;
  for (int64_t range = 0; range < chunk.ranges; ++range) {
    const int64_t at = taskRow(chunk, row, range);
    const HeadRowState &state = chunk.at<HeadRowState>(plan.states)[at];
    const auto factor = float(std::exp(state.maximum - base));
    if (range == 0)
      scaleRun(sum, plan.hidden, factor);
    else
      addScaled(factor, QLORA_DTYPE_F32,
                chunk.at<float>(plan.gradients) + at * plan.hidden, sum,
                plan.hidden);
  }
  return sum;
}

void HeadWalk::addLogitGradients(const HeadChunk &chunk, int64_t row,
                                 double factor, float *sum) const {
  for (int64_t range = 0; range < chunk.ranges; ++range)
    addScaled(float(factor), QLORA_DTYPE_F32,
              chunk.at<float>(plan.logitGradients) +
                  taskRow(chunk, row, range) * plan.hidden,
              sum, plan.hidden);
}

/// Recomputes the logits: softmax needs sums that exist only after all panels.
Status HeadWalk::addWeightGradient(const HeadChunk &chunk,
                                   const double *logSums, const double *scales,
                                   float *dw) {
  return tasks.run(plan.panels(chunk.inputs.piece.words),
                   [&](int64_t panel, int64_t slot) -> Status {
                     for (int64_t block = 0; block < chunk.blocks; ++block) {
                       const int64_t first = block * plan.blockRows;
                       QLORA_RETURN_IF_ERROR(panels->addWeightGradient(
                           blockOf(chunk, block), panel, logSums + first,
                           scales ? scales + first : nullptr, dw, slot,
                           slotOf(chunk, slot)));
                     }
                     return Status::ok();
                   });
}

} // namespace qlora
