// SPDX-License-Identifier: MIT

// Requests of head_loss and head_loss_grad, and their plan on the CPU.

#include "runtime/Kernels/Requests/HeadPlan.h"

#include <span>

namespace qlora::requests {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;
static constexpr qlora_dtype kF16 = QLORA_DTYPE_F16;

static uint64_t hiddenBytes(const KernelRequest &r, std::string_view operand,
                            std::string_view ld) {
  return matrixBytes(typeOf(r, operand), r.constant("rows"),
                     r.constant("hidden_size"), r.constant(ld))
      .bytes();
}

static uint64_t headBytes(const KernelRequest &r, std::string_view operand) {
  if (!r.dtype(operand))
    return 0;
  return matrixBytes(typeOf(r, operand), r.constant("vocab"),
                     r.constant("hidden_size"), r.constant("hidden_size"))
      .bytes();
}

std::vector<uint64_t> head_loss::operandBytes(const KernelRequest &r) {
  const uint64_t rowBytes = (Size(r.constant("rows")) * Size(4)).bytes();
  return {hiddenBytes(r, "hidden", "ldh"),
          headBytes(r, "w"),
          rowBytes,
          4,
          4,
          rowBytes,
          0};
}

std::vector<uint64_t> head_loss_grad::operandBytes(const KernelRequest &r) {
  std::vector<uint64_t> bytes = head_loss::operandBytes(r);
  bytes.pop_back();
  bytes.push_back(hiddenBytes(r, "dhidden", "lddh"));
  bytes.push_back(headBytes(r, "dw"));
  bytes.push_back(0);
  return bytes;
}

/// Row numbers and words are i32.
static Reason needCountable(const KernelRequest &r) {
  for (std::string_view name : {"rows", "vocab"})
    if (r.constant(name) > int64_t(1) << 31)
      return std::string(name) + " must be at most 2^31, got " +
             std::to_string(r.constant(name));
  return std::nullopt;
}

static Reason needHead(const KernelRequest &r) {
  return firstOf(
      [&] { return needShape(r); },
      [&] {
        return needPositive(r, {"rows", "hidden_size", "vocab", "chunk_rows"});
      },
      [&] { return needCountable(r); },
      [&] { return needStride(r, "ldh", r.constant("hidden_size")); },
      [&] {
        return needType(r, "hidden", {kF32, kBF16});
      },
      [&] {
        return needType(r, "w", {kF32, kBF16, kF16});
      },
      [&] { return needType(r, "targets", {QLORA_DTYPE_I32}); },
      [&] { return needType(r, "loss", {kF32}); },
      [&] { return needType(r, "count", {kF32}); },
      [&] { return needType(r, "correct", {QLORA_DTYPE_I32}); });
}

Reason head_loss::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needHead(r); },
                 [&] { return needAddressable(r); });
}

uint64_t head_loss::reference::workspaceBytes(const KernelRequest &r) {
  return (Size(r.constant("vocab")) * Size(4)).bytes();
}

Reason head_loss::chunked::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t head_loss::chunked::workspaceBytes(const KernelRequest &r) {
  return HeadPlan::of(r).total().bytes();
}

Reason head_loss_grad::reference::reject(const KernelRequest &r) {
  return firstOf(
      [&] { return needHead(r); },
      [&] { return needStride(r, "lddh", r.constant("hidden_size")); },
      [&] {
        return needType(r, "dhidden", {kF32, kBF16});
      },
      [&] { return needType(r, "dw", {kF32}); },
      [&] { return needAddressable(r); });
}

uint64_t head_loss_grad::reference::workspaceBytes(const KernelRequest &r) {
  return (Size(r.constant("vocab") + r.constant("hidden_size")) * Size(4))
      .bytes();
}

Reason head_loss_grad::chunked::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t head_loss_grad::chunked::workspaceBytes(const KernelRequest &r) {
  return HeadPlan::of(r).total().bytes();
}

// The plan on the CPU ---------------------------------------------------------

/// oneDNN packs 64 columns of b over all of the depth at most, and keeps a
/// block of sums; here is room for twice that.
static uint64_t mostLibraryScratch(const GemmProblem &p) {
  return (128 << 10) +
         2 * (Size(64) * Size(p.k) * Size(dtypeBits(p.b) / 8)).bytes();
}

HeadPlan HeadPlan::of(const KernelRequest &r) {
  HeadPlan plan;
  plan.chunkRows = std::min(r.constant("chunk_rows"), r.constant("rows"));
  plan.hidden = r.constant("hidden_size");
  plan.vocab = r.constant("vocab");
  plan.weightType = typeOf(r, "w");
  const bool isBF16 = typeOf(r, "hidden") == kBF16 && plan.weightType == kBF16;
  plan.productType = isBF16 ? kBF16 : kF32;
  plan.hasGradient = r.op->name == "head_loss_grad";
  plan.hasWeightGradient = plan.hasGradient && r.dtype("dw").has_value();
  plan.blockRows = std::min(kHeadBlockRows, (plan.chunkRows + 15) / 16 * 16);
  plan.panelWords = std::min(kHeadPanelWords, plan.vocab);

  const int64_t blocks = plan.blocks(plan.chunkRows);
  const int64_t taskRows =
      std::max(kHeadTasks, blocks) * plan.blockRows;
  plan.rowNumbers = (Size(plan.chunkRows) * Size(4)).aligned();
  plan.rowLosses = plan.logSums = (Size(plan.chunkRows) * Size(8)).aligned();
  plan.gathered =
      packed(plan.productType, blocks * plan.blockRows, plan.hidden);
  plan.states =
      (Size(taskRows) * Size(int64_t(sizeof(HeadRowState)))).aligned();
  plan.rowValues = packed(kF32, 3, plan.blockRows);
  plan.logits = packed(kF32, plan.blockRows, plan.panelWords);
  if (plan.hasGradient && plan.productType != kF32)
    plan.narrow = packed(plan.productType, plan.blockRows, plan.panelWords);
  if (plan.productType != plan.weightType)
    plan.words = packed(plan.productType, plan.panelWords, plan.hidden);
  const GemmProblem products[] = {
      plan.logitsProduct(plan.blockRows, plan.panelWords),
      plan.hiddenGradientProduct(plan.blockRows, plan.panelWords),
      plan.weightGradientProduct(plan.blockRows, plan.panelWords)};
  const int count = plan.hasWeightGradient ? 3 : plan.hasGradient ? 2 : 1;
  for (const GemmProblem &product : std::span(products, count))
    plan.scratch = largest(
        plan.scratch,
        sequentialGemmWorkspace(product, mostLibraryScratch(product)));
  if (plan.hasGradient)
    plan.gradients = packed(kF32, taskRows, plan.hidden);
  return plan;
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

} // namespace qlora::requests
