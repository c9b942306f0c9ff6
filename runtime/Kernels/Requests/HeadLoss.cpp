// SPDX-License-Identifier: MIT

// Requests of head_loss and head_loss_grad.

#include "runtime/Kernels/Requests/Workspaces.h"

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

} // namespace qlora::requests
