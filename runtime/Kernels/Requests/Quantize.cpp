// SPDX-License-Identifier: MIT

// Requests of quantize and quantize_scales, which fill weights when a model is
// loaded.

#include "runtime/Kernels/Math/NF4.h"
#include "runtime/Kernels/Requests/Requests.h"

namespace qlora::requests {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;

/// Bytes of that many elements of an operand's type.
static uint64_t runBytes(const KernelRequest &r, std::string_view operand,
                         int64_t elements) {
  return matrixBytes(typeOf(r, operand), 1, elements, elements).bytes();
}

static int64_t dividedUp(int64_t count, int64_t each) {
  return count / each + (count % each != 0);
}

// quantize --------------------------------------------------------------------

std::vector<uint64_t> quantize::operandBytes(const KernelRequest &r) {
  const int64_t elements = r.constant("elements");
  return {runBytes(r, "x", elements),
          static_cast<uint64_t>(dividedUp(elements, 2)),
          runBytes(r, "scales", dividedUp(elements, r.constant("block")))};
}

Reason quantize::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needShape(r); },
                 [&] { return needPositive(r, {"elements"}); },
                 [&] { return needBlock(r); },
                 [&] {
                   return needType(r, "x",
                                   {kF32, QLORA_DTYPE_BF16, QLORA_DTYPE_F16});
                 },
                 [&] { return needType(r, "packed", {QLORA_DTYPE_U8}); },
                 [&] { return needType(r, "scales", {kF32}); },
                 [&] { return needAddressable(r); });
}

uint64_t quantize::reference::workspaceBytes(const KernelRequest &) {
  return 0;
}

Reason quantize::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t quantize::cuda::workspaceBytes(const KernelRequest &) { return 0; }

// quantize_scales -------------------------------------------------------------

std::vector<uint64_t> quantize_scales::operandBytes(const KernelRequest &r) {
  const int64_t blocks = r.constant("blocks");
  return {runBytes(r, "scales", blocks), 4 * 256,
          static_cast<uint64_t>(blocks),
          runBytes(r, "absmax", dividedUp(blocks, kNF4NestedBlock)), 4};
}

Reason quantize_scales::reference::reject(const KernelRequest &r) {
  return firstOf([&] { return needShape(r); },
                 [&] { return needPositive(r, {"blocks"}); },
                 [&] { return needType(r, "scales", {kF32}); },
                 [&] { return needType(r, "map", {kF32}); },
                 [&] { return needType(r, "codes", {QLORA_DTYPE_U8}); },
                 [&] { return needType(r, "absmax", {kF32}); },
                 [&] { return needType(r, "offset", {kF32}); },
                 [&] { return needAddressable(r); });
}

uint64_t quantize_scales::reference::workspaceBytes(const KernelRequest &) {
  return 0;
}

Reason quantize_scales::cuda::reject(const KernelRequest &r) {
  return reference::reject(r);
}

uint64_t quantize_scales::cuda::workspaceBytes(const KernelRequest &) {
  return 0;
}

} // namespace qlora::requests
