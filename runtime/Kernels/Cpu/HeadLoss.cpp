// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad, chunked: labelled rows are gathered, and the
// logits of chunk_rows of them exist at a time.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/HeadTargets.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"

namespace qlora::cpu {

using requests::HeadPlan;

namespace {

/// The products of a chunk of up to `rows` rows. Those beyond the last
/// labelled row are zero.
struct ChunkProducts {
  int64_t rows;
  std::unique_ptr<Gemm> logits, hiddenGradient, weightGradient;
};

/// The parts of the workspace.
struct Parts {
  int32_t *rowNumbers;
  double *rowLosses;
  uint8_t *gathered;
  float *logits;
  uint8_t *narrowLogits;
  float *gradient;
  uint8_t *scratch;
};

class HeadLoss final : public LibraryKernel {
public:
  static PreparedKernel prepare(const KernelRequest &request);
  Status run(const LibraryKernelArgs &args) override;

private:
  explicit HeadLoss(const KernelRequest &request);
  Status addProducts(int64_t rows, bool hasWeightGradient);
  Parts partsOf(const LibraryKernelArgs &args) const;
  const ChunkProducts &productsFor(int64_t rows) const;

  void gather(const HeadOperands &operands, const Parts &parts, int64_t count,
              int64_t padded) const;
  void lossOfRows(const HeadOperands &operands, const Parts &parts,
                  int64_t count) const;
  Status addGradients(const HeadOperands &operands, const Parts &parts,
                      int64_t count, const ChunkProducts &products) const;
  void clearSkipped(const HeadOperands &operands) const;

  HeadShape shape;
  HeadPlan plan;
  std::vector<ChunkProducts> ladder; ///< fewest rows first
};

} // namespace

HeadLoss::HeadLoss(const KernelRequest &request)
    : shape(HeadShape::of(request)), plan(HeadPlan::of(request)) {}

Status HeadLoss::addProducts(int64_t rows, bool hasWeightGradient) {
  const uint64_t bytes = plan.scratch().bytes();
  ChunkProducts products = {rows, {}, {}, {}};
  QLORA_ASSIGN_OR_RETURN(products.logits,
                         Gemm::create(plan.logitsProduct(rows), bytes));
  if (plan.hasGradient) {
    QLORA_ASSIGN_OR_RETURN(
        products.hiddenGradient,
        Gemm::create(plan.hiddenGradientProduct(rows), bytes));
  }
  if (hasWeightGradient) {
    QLORA_ASSIGN_OR_RETURN(
        products.weightGradient,
        Gemm::create(plan.weightGradientProduct(rows), bytes));
  }
  ladder.push_back(std::move(products));
  return Status::ok();
}

/// A product's shape is fixed when prepared, but the number of labelled rows
/// is the data's: so a few sizes, each twice the one before.
PreparedKernel HeadLoss::prepare(const KernelRequest &request) {
  static constexpr int64_t kFewestRows = 16;
  std::unique_ptr<HeadLoss> kernel(new HeadLoss(request));
  const int64_t chunk = kernel->plan.chunkRows;
  const bool hasWeightGradient =
      kernel->plan.hasGradient && request.dtype("dw").has_value();
  for (int64_t rows = kFewestRows; rows < chunk; rows *= 2)
    QLORA_RETURN_IF_ERROR(kernel->addProducts(rows, hasWeightGradient));
  QLORA_RETURN_IF_ERROR(kernel->addProducts(chunk, hasWeightGradient));
  return std::unique_ptr<LibraryKernel>(std::move(kernel));
}

Parts HeadLoss::partsOf(const LibraryKernelArgs &args) const {
  auto *next = static_cast<uint8_t *>(args.buffers.back());
  const auto take = [&](requests::Size size) {
    uint8_t *part = next;
    next += size.bytes();
    return part;
  };
  Parts parts;
  parts.rowNumbers = reinterpret_cast<int32_t *>(take(plan.rowNumbers));
  parts.rowLosses = reinterpret_cast<double *>(take(plan.rowLosses));
  parts.gathered = take(plan.gathered);
  parts.logits = reinterpret_cast<float *>(take(plan.logits));
  parts.narrowLogits = take(plan.narrowLogits);
  parts.gradient = reinterpret_cast<float *>(take(plan.gradient));
  parts.scratch = next;
  return parts;
}

const ChunkProducts &HeadLoss::productsFor(int64_t rows) const {
  for (const ChunkProducts &products : ladder)
    if (products.rows >= rows)
      return products;
  return ladder.back();
}

void HeadLoss::gather(const HeadOperands &operands, const Parts &parts,
                      int64_t count, int64_t padded) const {
  const int64_t bytes = shape.hidden * (dtypeBits(shape.hiddenType) / 8);
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(parts.gathered + i * bytes,
                elementAt(operands.hidden, shape.hiddenType,
                          parts.rowNumbers[i] * shape.ldh),
                static_cast<size_t>(bytes));
  std::memset(parts.gathered + count * bytes, 0,
              static_cast<size_t>((padded - count) * bytes));
}

/// Loss and match of each row; with a gradient, logits become those of the
/// loss: softmax - 1 at the target.
void HeadLoss::lossOfRows(const HeadOperands &operands, const Parts &parts,
                          int64_t count) const {
  parallelFor(count, threadCount(), [&](int64_t i, int64_t) {
    const int32_t row = parts.rowNumbers[i];
    const int32_t target = operands.targets[row];
    float *logits = parts.logits + i * shape.vocab;
    const float maximum = maximumOf(logits, shape.vocab);
    const double lse =
        maximum + std::log(sumExponentials(logits, shape.vocab, maximum));
    parts.rowLosses[i] = lse - logits[target];
    // torch.argmax: the first of equal maxima.
    operands.correct[row] =
        std::find(logits, logits + target, maximum) == logits + target &&
        logits[target] == maximum;
    if (!plan.hasGradient)
      return;
    exponentiate(logits, shape.vocab, float(lse));
    logits[target] -= 1.0f;
    if (plan.gradientType != QLORA_DTYPE_F32)
      narrow(logits, plan.gradientType,
             elementAt(parts.narrowLogits, plan.gradientType, i * shape.vocab),
             shape.vocab);
  });
}

Status HeadLoss::addGradients(const HeadOperands &operands, const Parts &parts,
                              int64_t count,
                              const ChunkProducts &products) const {
  const bool isNarrow = plan.gradientType != QLORA_DTYPE_F32;
  void *logits = isNarrow ? static_cast<void *>(parts.narrowLogits)
                          : static_cast<void *>(parts.logits);
  const int64_t rowBytes = shape.vocab * (dtypeBits(plan.gradientType) / 8);
  std::memset(static_cast<uint8_t *>(logits) + count * rowBytes, 0,
              static_cast<size_t>((products.rows - count) * rowBytes));
  QLORA_RETURN_IF_ERROR(products.hiddenGradient->run(
      logits, operands.w, parts.gradient, parts.scratch));
  if (products.weightGradient && operands.dw)
    QLORA_RETURN_IF_ERROR(products.weightGradient->run(
        logits, parts.gathered, operands.dw, parts.scratch));
  for (int64_t i = 0; i < count; ++i)
    narrow(parts.gradient + i * shape.hidden, shape.dhiddenType,
           elementAt(operands.dhidden, shape.dhiddenType,
                     parts.rowNumbers[i] * shape.lddh),
           shape.hidden);
  return Status::ok();
}

void HeadLoss::clearSkipped(const HeadOperands &operands) const {
  const int64_t bytes = dtypeBits(shape.dhiddenType) / 8;
  for (int64_t row = 0; row < shape.rows; ++row) {
    if (operands.targets[row] != kNoTarget)
      continue;
    operands.correct[row] = 0;
    if (operands.dhidden)
      std::memset(
          elementAt(operands.dhidden, shape.dhiddenType, row * shape.lddh), 0,
          static_cast<size_t>(shape.hidden * bytes));
  }
}

Status HeadLoss::run(const LibraryKernelArgs &args) {
  const HeadOperands operands = HeadOperands::of(args, plan.hasGradient);
  const Parts parts = partsOf(args);
  QLORA_RETURN_IF_ERROR(checkTargets(shape, operands.targets));
  clearSkipped(operands);
  double loss = 0;
  int64_t labels = 0;
  for (int64_t row = 0; row < shape.rows;) {
    int64_t count = 0;
    for (; row < shape.rows && count < plan.chunkRows; ++row)
      if (operands.targets[row] != kNoTarget)
        parts.rowNumbers[count++] = static_cast<int32_t>(row);
    if (count == 0)
      break;
    const ChunkProducts &products = productsFor(count);
    gather(operands, parts, count, products.rows);
    QLORA_RETURN_IF_ERROR(products.logits->run(parts.gathered, operands.w,
                                               parts.logits, parts.scratch));
    if (args.observer && args.observer->onLogits)
      args.observer->onLogits({parts.rowNumbers, static_cast<size_t>(count)},
                              parts.logits, shape.vocab);
    lossOfRows(operands, parts, count);
    for (int64_t i = 0; i < count; ++i)
      loss += parts.rowLosses[i];
    labels += count;
    if (plan.hasGradient)
      QLORA_RETURN_IF_ERROR(addGradients(operands, parts, count, products));
  }
  *operands.loss = float(loss);
  *operands.count = float(labels);
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
