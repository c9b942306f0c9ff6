// SPDX-License-Identifier: MIT

// Requests of the ops that walk over rows once: embedding, column_sum,
// accumulate, copy_rows, clip_norm.

#include "runtime/Kernels/Requests/Workspaces.h"

namespace qlora::requests {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;
static constexpr qlora_dtype kF16 = QLORA_DTYPE_F16;
static constexpr qlora_dtype kI32 = QLORA_DTYPE_I32;

static uint64_t rowBytes(const KernelRequest &r, std::string_view operand,
                         std::string_view ld) {
  return matrixBytes(typeOf(r, operand), r.constant("rows"),
                     r.constant("columns"), r.constant(ld))
      .bytes();
}

static uint64_t tableBytes(const KernelRequest &r, std::string_view operand) {
  return matrixBytes(typeOf(r, operand), r.constant("vocab"),
                     r.constant("columns"), r.constant("columns"))
      .bytes();
}

static uint64_t idBytes(const KernelRequest &r) {
  return (Size(r.constant("rows")) * Size(4)).bytes();
}

static Reason needRows(const KernelRequest &r,
                       std::initializer_list<std::string_view> strides) {
  if (Reason reason = needShape(r))
    return reason;
  if (Reason reason = needPositive(r, {"rows", "columns"}))
    return reason;
  for (std::string_view ld : strides)
    if (Reason reason = needStride(r, ld, r.constant("columns")))
      return reason;
  return std::nullopt;
}

// embedding -------------------------------------------------------------------

std::vector<uint64_t> embedding::operandBytes(const KernelRequest &r) {
  return {idBytes(r), tableBytes(r, "w"), rowBytes(r, "out", "ldo")};
}

Reason embedding::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needRows(r, {"ldo"}); },
                 [&] { return needPositive(r, {"vocab"}); },
                 [&] { return needType(r, "ids", {kI32}); },
                 [&] {
                   return needType(r, "w", {kF32, kBF16, kF16});
                 },
                 [&] {
                   return needType(r, "out", {kF32, kBF16});
                 },
                 [&] { return needAddressable(r); });
}

uint64_t embedding::reference::workspaceBytes(const KernelRequest &) {
  return 0;
}

std::vector<uint64_t> embedding_grad::operandBytes(const KernelRequest &r) {
  return {idBytes(r), rowBytes(r, "dout", "lddo"), tableBytes(r, "dw")};
}

Reason embedding_grad::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needRows(r, {"lddo"}); },
                 [&] { return needPositive(r, {"vocab"}); },
                 [&] { return needType(r, "ids", {kI32}); },
                 [&] {
                   return needType(r, "dout", {kF32, kBF16});
                 },
                 [&] { return needType(r, "dw", {kF32}); },
                 [&] { return needAddressable(r); });
}

uint64_t embedding_grad::reference::workspaceBytes(const KernelRequest &) {
  return 0;
}

// column_sum
// --------------------------------------------------------------------

std::vector<uint64_t> column_sum::operandBytes(const KernelRequest &r) {
  return {rowBytes(r, "x", "ldx"),
          (Size(r.constant("columns")) * Size(4)).bytes(), 0};
}

Reason column_sum::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needRows(r, {"ldx"}); },
                 [&] {
                   return needType(r, "x", {kF32, kBF16});
                 },
                 [&] { return needType(r, "out", {kF32}); },
                 [&] { return needAddressable(r); });
}

uint64_t column_sum::reference::workspaceBytes(const KernelRequest &r) {
  return (Size(kColumnSumPartials) * Size(r.constant("columns")) * Size(4))
      .bytes();
}

// accumulate
// ----------------------------------------------------------------------

std::vector<uint64_t> accumulate::operandBytes(const KernelRequest &r) {
  return {rowBytes(r, "x", "ldx"), rowBytes(r, "y", "ldy")};
}

Reason accumulate::reference::reject(const KernelRequest &r) {
  return firstOf(
      [&] {
        return needRows(r, {"ldx", "ldy"});
      },
      [&] {
        return needType(r, "x", {kF32, kBF16});
      },
      [&] {
        return needType(r, "y", {kF32, kBF16});
      },
      [&] { return needAddressable(r); });
}

uint64_t accumulate::reference::workspaceBytes(const KernelRequest &) {
  return 0;
}

// copy_rows
// -------------------------------------------------------------------------

std::vector<uint64_t> copy_rows::operandBytes(const KernelRequest &r) {
  return {rowBytes(r, "x", "ldx"), rowBytes(r, "out", "ldo")};
}

Reason copy_rows::reference::reject(const KernelRequest &r) {
  return firstOf(
      [&] {
        return needRows(r, {"ldx", "ldo"});
      },
      [&] {
        return needType(r, "x", {kF32, kBF16, kF16, kI32});
      },
      [&] { return needType(r, "out", {typeOf(r, "x")}); },
      [&] { return needAddressable(r); });
}

uint64_t copy_rows::reference::workspaceBytes(const KernelRequest &) {
  return 0;
}

// clip_norm
// ---------------------------------------------------------------------------

std::vector<uint64_t> clip_norm::operandBytes(const KernelRequest &r) {
  return {(Size(r.constant("elements")) * Size(4)).bytes(), 4, 4, 0};
}

/// The label count is element 1, and `skip` leaves an end of the range.
static Reason needCount(const KernelRequest &r) {
  const int64_t elements = r.constant("elements"), skip = r.constant("skip");
  if (elements < 2)
    return "elements must be at least 2, got " + std::to_string(elements);
  if (skip < 0 || skip > elements)
    return "skip must be in [0, elements], got " + std::to_string(skip);
  return std::nullopt;
}

Reason clip_norm::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needShape(r); },
                 [&] { return needPositive(r, {"elements"}); },
                 [&] { return needCount(r); },
                 [&] { return needType(r, "gradient", {kF32}); },
                 [&] { return needType(r, "norm", {kF32}); },
                 [&] { return needType(r, "scale", {kF32}); });
}

uint64_t clip_norm::reference::workspaceBytes(const KernelRequest &) {
  return kClipNormPartials * 8;
}

} // namespace qlora::requests
