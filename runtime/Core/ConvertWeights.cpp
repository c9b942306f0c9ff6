// SPDX-License-Identifier: MIT

// The conversions that kernels use, on unaligned bytes.

#include "runtime/Core/ConvertWeights.h"

#include "runtime/Kernels/Rows.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace qlora {

unsigned weightBytes(qlora_dtype dtype) {
  switch (dtype) {
  case QLORA_DTYPE_F32:
    return 4;
  case QLORA_DTYPE_BF16:
  case QLORA_DTYPE_F16:
    return 2;
  default:
    return 0;
  }
}

void weightsToFloat(qlora_dtype dtype, const uint8_t *from, int64_t count,
                    float *out) {
  if (dtype == QLORA_DTYPE_F32) {
    std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  assert(weightBytes(dtype) == 2 && "no dtype of weights");
  auto *const convert =
      dtype == QLORA_DTYPE_BF16 ? qlora_bf16_to_f32 : qlora_f16_to_f32;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    out[i] = convert(bits);
  }
}

void weightsFromFloat(qlora_dtype dtype, const float *from, int64_t count,
                      uint8_t *out) {
  if (dtype == QLORA_DTYPE_F32) {
    std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  assert(weightBytes(dtype) == 2 && "no dtype of weights");
  auto *const convert =
      dtype == QLORA_DTYPE_BF16 ? qlora_f32_to_bf16 : qlora_f32_to_f16;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = convert(from[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

void convertWeights(qlora_dtype fromType, const uint8_t *from,
                    qlora_dtype toType, uint8_t *to, int64_t count) {
  if (fromType == toType) {
    std::memcpy(to, from, static_cast<size_t>(count) * weightBytes(toType));
    return;
  }
  constexpr int64_t kPart = 4096;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < count; begin += kPart) {
    float values[kPart];
    const int64_t part = std::min(kPart, count - begin);
    weightsToFloat(fromType, from + begin * weightBytes(fromType), part,
                   values);
    weightsFromFloat(toType, values, part, to + begin * weightBytes(toType));
  }
}

} // namespace qlora
