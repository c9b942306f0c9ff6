// SPDX-License-Identifier: MIT

// Sizes of workspaces and their parts.

#include "runtime/Kernels/Requests/Workspaces.h"

#include <algorithm>

namespace qlora::requests {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;

static Size packed(qlora_dtype dtype, int64_t rows, int64_t columns) {
  return matrixBytes(dtype, rows, columns, columns).aligned();
}

Size gemmWorkspace(qlora_dtype a, qlora_dtype b, qlora_dtype c, int64_t m,
                   int64_t n, int64_t k) {
  Size bytes = 0;
  if (a != b)
    bytes = bytes + (a == kF32 ? packed(kBF16, m, k) : packed(kBF16, k, n));
  if (a == kF32 && b == kF32 && c != kF32)
    bytes = bytes + packed(kF32, m, n);
  return bytes + Size(4 << 20);
}

Size attentionSlot(int64_t length, int64_t dim) {
  const int64_t block = std::min<int64_t>(length, 128);
  return Size(4) * (Size(block) * Size(block) + Size(4 * block) * Size(dim) +
                    Size(4 * block));
}

Size attentionGradSlot(int64_t length, int64_t dim) {
  return attentionSlot(length, dim) * Size(2) +
         Size(8) * Size(length) * Size(dim);
}

Size headWorkspace(const KernelRequest &r, bool hasGradient) {
  const int64_t hidden = r.constant("hidden_size");
  const int64_t vocab = r.constant("vocab");
  const int64_t chunk = std::min(r.constant("chunk_rows"), r.constant("rows"));
  Size bytes = packed(kF32, chunk, vocab) + packed(kF32, chunk, hidden) +
               packed(kF32, 512, hidden) + Size(4 << 20);
  if (hasGradient)
    bytes = bytes + packed(kF32, chunk, hidden) + packed(kBF16, chunk, vocab);
  return bytes;
}

} // namespace qlora::requests
