// SPDX-License-Identifier: MIT

// Workspace sizes of the LM head's CPU kernels.

#include "runtime/Kernels/Plans/Workspaces.h"

#include <algorithm>
#include <span>

namespace qlora::plans {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;

int64_t headWords(const KernelRequest &r) {
  return r.constant(r.op->name == "head_part" ? "piece" : "vocab");
}

bool hasHeadGradient(const KernelRequest &r) {
  return r.op->name == "head_part" ? r.dtype("gradient").has_value()
                                   : r.op->name == "head_loss_grad";
}

bool hasHeadWeightGradient(const KernelRequest &r) {
  return r.op->name == "head_loss_grad" && r.dtype("dw").has_value();
}

/// Returns the scratch allowed for oneDNN, in bytes. oneDNN packs at most 64
/// columns of b and keeps a block of sums; the limit is twice that.
static uint64_t mostLibraryScratch(const GemmProblem &p) {
  return (128 << 10) +
         2 * (Size(64) * Size(p.k) * Size(dtypeBits(p.b) / 8)).bytes();
}

HeadPlan HeadPlan::of(const KernelRequest &r) {
  HeadPlan plan;
  plan.chunkRows = std::min(r.constant("chunk_rows"), r.constant("rows"));
  plan.hidden = r.constant("hidden_size");
  plan.vocab = headWords(r);
  plan.weightType = r.type("w");
  const bool isBF16 = r.type("hidden") == kBF16 && plan.weightType == kBF16;
  plan.productType = isBF16 ? kBF16 : kF32;
  plan.hasGradient = hasHeadGradient(r);
  plan.hasWeightGradient = hasHeadWeightGradient(r);
  plan.blockRows = std::min(kHeadBlockRows, (plan.chunkRows + 15) / 16 * 16);
  plan.panelWords = std::min(kHeadPanelWords, plan.vocab);
  plan.cap = static_cast<float>(r.constantAsDouble("cap"));
  plan.smoothing = r.constantAsDouble("smoothing");
  plan.hasOwnProbability =
      r.op->name != "head_part" && r.constant("own_probability");

  const int64_t blocks = plan.blocks(plan.chunkRows);
  const int64_t taskRows = std::max(kHeadTasks, blocks) * plan.blockRows;
  WorkspaceLayout layout;
  plan.rowNumbers = layout.add(Size(plan.chunkRows) * Size(4));
  plan.rowLosses = layout.add(Size(plan.chunkRows) * Size(8));
  plan.logSums = layout.add(Size(plan.chunkRows) * Size(8));
  plan.gathered = layout.add(
      packed(plan.productType, blocks * plan.blockRows, plan.hidden));
  plan.states =
      layout.add(Size(taskRows) * Size(int64_t(sizeof(HeadRowState))));
  if (plan.hasGradient)
    plan.gradients = layout.add(packed(kF32, taskRows, plan.hidden));
  if (plan.hasWeightGradient && plan.hasOwnProbability)
    plan.scales = layout.add(Size(plan.chunkRows) * Size(8));
  if (plan.hasGradient && plan.smoothing != 0 && plan.cap != 0)
    plan.logitGradients = layout.add(packed(kF32, taskRows, plan.hidden));
  if (r.op->name == "head_loss_grad" && plan.smoothing != 0 && plan.cap == 0)
    plan.wordSums = layout.add(packed(kF32, kHeadTasks, plan.hidden));
  WorkspaceLayout slot;
  plan.rowValues = slot.add(packed(kF32, 3, plan.blockRows));
  plan.logits = slot.add(packed(kF32, plan.blockRows, plan.panelWords));
  if (plan.hasGradient && plan.productType != kF32)
    plan.narrow =
        slot.add(packed(plan.productType, plan.blockRows, plan.panelWords));
  if (plan.hasGradient && plan.cap != 0)
    plan.slopes = slot.add(packed(kF32, plan.blockRows, plan.panelWords));
  if (plan.productType != plan.weightType)
    plan.words =
        slot.add(packed(plan.productType, plan.panelWords, plan.hidden));
  plan.scratch = slot.add(plan.productScratch());
  plan.slotBytes = slot.end().bytes();
  plan.slots = layout.add(slot.end() * Size(kGemmSlots));
  plan.total = layout.end();
  return plan;
}

Size HeadPlan::productScratch() const {
  const GemmProblem products[] = {logitsProduct(blockRows, panelWords),
                                  hiddenGradientProduct(blockRows, panelWords),
                                  weightGradientProduct(blockRows, panelWords)};
  const int count = hasWeightGradient ? 3 : hasGradient ? 2 : 1;
  Size scratch = 0;
  for (const GemmProblem &product : std::span(products, count))
    scratch = largest(
        scratch, sequentialGemmWorkspace(product, mostLibraryScratch(product)));
  return scratch;
}

uint64_t headWorkspace(const KernelRequest &r) {
  return HeadPlan::of(r).total.bytes();
}

GemmProblem HeadPlan::logitsProduct(int64_t rows, int64_t count) const {
  return {rows, count,       hidden,      hidden, hidden, count, false,
          true, productType, productType, kF32,   1,      0};
}

GemmProblem HeadPlan::hiddenGradientProduct(int64_t rows, int64_t count) const {
  return {rows,  hidden,      count,       count, hidden, hidden, false,
          false, productType, productType, kF32,  1,      1};
}

GemmProblem HeadPlan::weightGradientProduct(int64_t rows, int64_t count) const {
  return {count, hidden,      rows,        count, hidden, hidden, true,
          false, productType, productType, kF32,  1,      1};
}

HeadMergePlan HeadMergePlan::of(const KernelRequest &r) {
  WorkspaceLayout layout;
  HeadMergePlan plan;
  plan.losses = layout.add(Size(r.constant("own")) * Size(8));
  if (r.dtype("gradient") && r.constantAsDouble("smoothing") != 0)
    plan.wordSums =
        layout.add(packed(kF32, kHeadTasks, r.constant("hidden_size")));
  plan.total = layout.end();
  return plan;
}

uint64_t headMergeWorkspace(const KernelRequest &r) {
  return HeadMergePlan::of(r).total.bytes();
}

} // namespace qlora::plans
