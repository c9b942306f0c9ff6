// SPDX-License-Identifier: MIT

// Applies the kernels' dtype conversions to unaligned bytes.

#include "runtime/Weights/ConvertWeights.h"

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Parallel.h"

#include <algorithm>
#include <array>
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
  // Elements in a file may be unaligned; the vectorised loop needs alignment.
  std::array<uint16_t, 1024> piece;
  for (int64_t first = 0; first < count;) {
    const int64_t part =
        std::min(count - first, static_cast<int64_t>(piece.size()));
    std::memcpy(piece.data(), from + 2 * first,
                static_cast<size_t>(part) * sizeof(uint16_t));
    widen(dtype, piece.data(), out + first, part);
    first += part;
  }
}

void weightsFromFloat(qlora_dtype dtype, const float *from, int64_t count,
                      uint8_t *out) {
  assert(weightBytes(dtype) != 0 && "no dtype of weights");
  narrow(from, dtype, out, count);
}

template <size_t Bytes>
static void turn(const uint8_t *from, int64_t rows, int64_t columns,
                 uint8_t *to) {
  // Rows and columns of a tile. A source and a target tile fit into the cache.
  constexpr int64_t kSide = 32;
  parallelRanges(rows, kSide, [&](int64_t begin, int64_t end) {
    for (int64_t top = begin; top < end; top += kSide)
      for (int64_t left = 0; left < columns; left += kSide)
        for (int64_t c = left; c < std::min(left + kSide, columns); ++c)
          for (int64_t r = top; r < std::min(top + kSide, end); ++r)
            std::memcpy(to + static_cast<size_t>(c * rows + r) * Bytes,
                        from + static_cast<size_t>(r * columns + c) * Bytes,
                        Bytes);
  });
}

void turnWeights(qlora_dtype dtype, const uint8_t *from, int64_t rows,
                 int64_t columns, uint8_t *to) {
  assert(weightBytes(dtype) != 0 && "no dtype of weights");
  (weightBytes(dtype) == 4 ? turn<4> : turn<2>)(from, rows, columns, to);
}

void convertWeights(qlora_dtype fromType, const uint8_t *from,
                    qlora_dtype toType, uint8_t *to, int64_t count) {
  if (fromType == toType) {
    std::memcpy(to, from, static_cast<size_t>(count) * weightBytes(toType));
    return;
  }
  constexpr int64_t kPart = 4096;
  parallelRanges(count, kPart, [&](int64_t begin, int64_t end) {
    float values[kPart];
    for (int64_t at = begin; at < end; at += kPart) {
      const int64_t part = std::min(kPart, end - at);
      weightsToFloat(fromType, from + at * weightBytes(fromType), part, values);
      weightsFromFloat(toType, values, part, to + at * weightBytes(toType));
    }
  });
}

} // namespace qlora
