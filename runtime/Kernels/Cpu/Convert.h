// SPDX-License-Identifier: MIT

// Converts runs of values between floating-point types. Stores round to nearest
// even (runtime/Kernels/Rows.h).

#ifndef QLORA_RUNTIME_KERNELS_CPU_CONVERT_H
#define QLORA_RUNTIME_KERNELS_CPU_CONVERT_H

#include <cstdint>
#include <cstring>

#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// Returns the address of element `index` of an array of `dtype` (not NF4).
inline const void *elementAt(const void *base, qlora_dtype dtype,
                             int64_t index) {
  return static_cast<const uint8_t *>(base) + index * (dtypeBits(dtype) / 8);
}
inline void *elementAt(void *base, qlora_dtype dtype, int64_t index) {
  return static_cast<uint8_t *>(base) + index * (dtypeBits(dtype) / 8);
}

/// to[i] := 0.
inline void clearRun(qlora_dtype dtype, void *to, int64_t count) {
  std::memset(to, 0, static_cast<size_t>(count * (dtypeBits(dtype) / 8)));
}

/// to[i] := from[i]; `from` is f32, bf16 or f16.
void widen(qlora_dtype dtype, const void *from, float *to, int64_t count);
/// to[i] := from[i]; `to` is f32, bf16 or f16.
void narrow(const float *from, qlora_dtype dtype, void *to, int64_t count);
/// to[i] := from[i] + beta * to[i], rounded once; beta 0 does not read `to`.
void narrowSum(const float *from, float beta, qlora_dtype dtype, void *to,
               int64_t count);

/// to[i] := from[i] between any two of f32, bf16 and f16.
void convertRun(qlora_dtype fromType, const void *from, qlora_dtype toType,
                void *to, int64_t count);
/// to[i] := from[i] + to[i], in f32, rounded once.
void addRun(qlora_dtype fromType, const void *from, qlora_dtype toType,
            void *to, int64_t count);
/// to[i] += factor * from[i].
void addScaled(float factor, qlora_dtype fromType, const void *from, float *to,
               int64_t count);

float loadElement(qlora_dtype dtype, const void *base, int64_t index);
void storeElement(qlora_dtype dtype, void *base, int64_t index, float value);

/// Returns the sum of a[i] * b[i] in f64, in eight lanes whatever the vector
/// width, so that all machines get the same bits.
double sumOfProducts(const float *a, const float *b, int64_t count);
inline double sumOfSquares(const float *values, int64_t count) {
  return sumOfProducts(values, values, count);
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_CONVERT_H
