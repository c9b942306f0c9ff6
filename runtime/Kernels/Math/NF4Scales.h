// SPDX-License-Identifier: MIT

// Which block scale an element of an NF4 matrix is multiplied with.
//
// By the format it is scale j / block for element j of the flattened matrix,
// and where the columns are a multiple of the block nothing else is possible.
// Otherwise bitsandbytes 0.50 on a CPU with AVX-512 decodes row by row, each
// row from scale row * (columns / block) on, if the columns are a multiple of
// 16 and the block is below 2048 (measured for every even number of columns
// to 198 and blocks 32 to 4096). The weights that transformers and PEFT then
// compute with on a CPU, and that the golden cases hold, are those; they are
// not the ones that were quantised. We give the same numbers.

#ifndef QLORA_RUNTIME_KERNELS_MATH_NF4SCALES_H
#define QLORA_RUNTIME_KERNELS_MATH_NF4SCALES_H

#include <cstdint>

#ifdef __CUDACC__
#define QLORA_HOST_DEVICE __host__ __device__
#else
#define QLORA_HOST_DEVICE
#endif

namespace qlora {

/// Whether rows start at a scale of their own.
QLORA_HOST_DEVICE constexpr bool nf4HasRowScales(int64_t columns, int64_t block) {
  return columns % block != 0 && columns % 16 == 0 && block < 2048;
}

/// Index of the scale of flattened element `element`.
QLORA_HOST_DEVICE constexpr int64_t nf4ScaleIndex(int64_t columns, int64_t block,
                                int64_t element) {
  if (!nf4HasRowScales(columns, block))
    return element / block;
  return element / columns * (columns / block) + element % columns / block;
}

/// The first element after `element` that may have another scale.
QLORA_HOST_DEVICE constexpr int64_t nf4ScaleRunEnd(int64_t columns, int64_t block,
                                 int64_t element) {
  if (!nf4HasRowScales(columns, block))
    return (element / block + 1) * block;
  const int64_t rowStart = element / columns * columns;
  const int64_t blockEnd = ((element - rowStart) / block + 1) * block;
  return rowStart + (blockEnd < columns ? blockEnd : columns);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_MATH_NF4SCALES_H
