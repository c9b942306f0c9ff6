// SPDX-License-Identifier: MIT

// Requests of attention and attention_grad.

#include "runtime/Kernels/Requests/Workspaces.h"

namespace qlora::requests {

static Size tokenMatrix(const KernelRequest &r, std::string_view operand,
                        std::string_view heads, std::string_view ld) {
  return matrixBytes(typeOf(r, operand),
                     r.constant("batch") * r.constant("length"),
                     r.constant(heads) * r.constant("dim"), r.constant(ld));
}

static Size segmentBytes(const KernelRequest &r) {
  if (!r.dtype("segments"))
    return 0;
  return Size(r.constant("batch")) * Size(r.constant("length")) * Size(4);
}

static Size lseBytes(const KernelRequest &r) {
  return Size(r.constant("batch")) * Size(r.constant("heads")) *
         Size(r.constant("length")) * Size(4);
}

std::vector<uint64_t> attention::operandBytes(const KernelRequest &r) {
  return {tokenMatrix(r, "q", "heads", "ldq").bytes(),
          tokenMatrix(r, "k", "kv_heads", "ldk").bytes(),
          tokenMatrix(r, "v", "kv_heads", "ldv").bytes(),
          segmentBytes(r).bytes(),
          tokenMatrix(r, "out", "heads", "ldo").bytes(),
          lseBytes(r).bytes(),
          0};
}

std::vector<uint64_t> attention_grad::operandBytes(const KernelRequest &r) {
  return {tokenMatrix(r, "q", "heads", "ldq").bytes(),
          tokenMatrix(r, "k", "kv_heads", "ldk").bytes(),
          tokenMatrix(r, "v", "kv_heads", "ldv").bytes(),
          segmentBytes(r).bytes(),
          tokenMatrix(r, "out", "heads", "ldo").bytes(),
          lseBytes(r).bytes(),
          tokenMatrix(r, "dout", "heads", "lddo").bytes(),
          tokenMatrix(r, "dq", "heads", "lddq").bytes(),
          tokenMatrix(r, "dk", "kv_heads", "lddk").bytes(),
          tokenMatrix(r, "dv", "kv_heads", "lddv").bytes(),
          0};
}

/// Extents small enough that products of two stay far from overflow.
static Reason needExtents(const KernelRequest &r) {
  for (std::string_view name : {"batch", "length", "heads", "kv_heads", "dim"})
    if (r.constant(name) > int64_t(1) << 24)
      return std::string(name) + " must be at most 2^24, got " +
             std::to_string(r.constant(name));
  if (r.constant("heads") % r.constant("kv_heads") != 0)
    return "heads must be a multiple of kv_heads, got " +
           std::to_string(r.constant("heads")) + " and " +
           std::to_string(r.constant("kv_heads"));
  if (r.constant("window") < 0)
    return "window must not be negative, got " +
           std::to_string(r.constant("window"));
  return std::nullopt;
}

static Reason needSame(const KernelRequest &r,
                       std::initializer_list<std::string_view> operands) {
  for (std::string_view operand : operands)
    if (Reason reason = needType(r, operand, {typeOf(r, "q")}))
      return *reason + " like q";
  return std::nullopt;
}

static Reason needInputs(const KernelRequest &r) {
  return firstOf([&] { return needShape(r); },
                 [&] {
                   return needPositive(r, {"batch", "length", "heads",
                                           "kv_heads", "dim", "slots"});
                 },
                 [&] { return needExtents(r); },
                 [&] {
                   return needType(r, "q", {QLORA_DTYPE_F32, QLORA_DTYPE_BF16});
                 },
                 [&] {
                   return needSame(r, {"k", "v", "out"});
                 },
                 [&] { return needType(r, "segments", {QLORA_DTYPE_I32}); },
                 [&] { return needType(r, "lse", {QLORA_DTYPE_F32}); });
}

static Reason needStrides(const KernelRequest &r,
                          std::initializer_list<std::string_view> queries,
                          std::initializer_list<std::string_view> keys) {
  for (std::string_view ld : queries)
    if (Reason reason =
            needStride(r, ld, r.constant("heads") * r.constant("dim")))
      return reason;
  for (std::string_view ld : keys)
    if (Reason reason =
            needStride(r, ld, r.constant("kv_heads") * r.constant("dim")))
      return reason;
  return std::nullopt;
}

Reason attention::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needInputs(r); },
                 [&] {
                   return needStrides(r, {"ldq", "ldo"}, {"ldk", "ldv"});
                 },
                 [&] { return needAddressable(r); });
}

/// The scores of one query per slot, in f64.
uint64_t attention::reference::workspaceBytes(const KernelRequest &r) {
  return (Size(r.constant("slots")) * Size(8) * Size(r.constant("length")))
      .bytes();
}

Reason attention::blocked::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t attention::blocked::workspaceBytes(const KernelRequest &r) {
  return AttentionScratch::of(r).bytes(r.constant("slots")).bytes();
}

Reason attention_grad::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needInputs(r); },
                 [&] {
                   return needSame(r, {"dout", "dq", "dk", "dv"});
                 },
                 [&] {
                   return needStrides(r, {"ldq", "ldo", "lddo", "lddq"},
                                      {"ldk", "ldv", "lddk", "lddv"});
                 },
                 [&] { return needAddressable(r); });
}

/// Two gradients of one row per slot, in f64.
uint64_t attention_grad::reference::workspaceBytes(const KernelRequest &r) {
  return (Size(r.constant("slots")) * Size(16) * Size(r.constant("dim")))
      .bytes();
}

Reason attention_grad::blocked::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t attention_grad::blocked::workspaceBytes(const KernelRequest &r) {
  return AttentionScratch::of(r).bytes(r.constant("slots")).bytes();
}

} // namespace qlora::requests
