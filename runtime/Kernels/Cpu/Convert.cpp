// SPDX-License-Identifier: MIT

// Conversions, one vectorised loop per pair of types.

#include "runtime/Kernels/Cpu/Convert.h"

#include <cassert>
#include <cstring>

#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

/// Loops over 16-bit floats:
///
///   widen     16-bit to f32
///   narrow    f32 to 16-bit
///   sum       to := from + beta * to, computed in f32; `to` is 16-bit
#define QLORA_HALF_LOOPS(Name, Load, Store)                                    \
  QLORA_VECTOR static void widen##Name(const uint16_t *__restrict from,        \
                                       float *__restrict to, int64_t count) {  \
    for (int64_t i = 0; i < count; ++i)                                        \
      to[i] = Load(from[i]);                                                   \
  }                                                                            \
  QLORA_VECTOR static void narrow##Name(                                       \
      const float *__restrict from, uint16_t *__restrict to, int64_t count) {  \
    for (int64_t i = 0; i < count; ++i)                                        \
      to[i] = Store(from[i]);                                                  \
  }                                                                            \
  QLORA_VECTOR static void sum##Name(const float *__restrict from, float beta, \
                                     uint16_t *__restrict to, int64_t count) { \
    for (int64_t i = 0; i < count; ++i)                                        \
      to[i] = Store(from[i] + beta * Load(to[i]));                             \
  }
QLORA_HALF_LOOPS(BF16, qlora_bf16_to_f32, qlora_f32_to_bf16)
QLORA_HALF_LOOPS(F16, qlora_f16_to_f32, qlora_f32_to_f16)
#undef QLORA_HALF_LOOPS

QLORA_VECTOR static void sumF32(const float *__restrict from, float beta,
                                float *__restrict to, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = from[i] + beta * to[i];
}

void widen(qlora_dtype dtype, const void *from, float *to, int64_t count) {
  if (dtype == QLORA_DTYPE_BF16)
    return widenBF16(static_cast<const uint16_t *>(from), to, count);
  if (dtype == QLORA_DTYPE_F16)
    return widenF16(static_cast<const uint16_t *>(from), to, count);
  assert(dtype == QLORA_DTYPE_F32);
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

void narrow(const float *from, qlora_dtype dtype, void *to, int64_t count) {
  if (dtype == QLORA_DTYPE_BF16)
    return narrowBF16(from, static_cast<uint16_t *>(to), count);
  if (dtype == QLORA_DTYPE_F16)
    return narrowF16(from, static_cast<uint16_t *>(to), count);
  assert(dtype == QLORA_DTYPE_F32);
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

void narrowSum(const float *from, float beta, qlora_dtype dtype, void *to,
               int64_t count) {
  if (beta == 0.0f)
    return narrow(from, dtype, to, count);
  if (dtype == QLORA_DTYPE_BF16)
    return sumBF16(from, beta, static_cast<uint16_t *>(to), count);
  if (dtype == QLORA_DTYPE_F16)
    return sumF16(from, beta, static_cast<uint16_t *>(to), count);
  assert(dtype == QLORA_DTYPE_F32);
  sumF32(from, beta, static_cast<float *>(to), count);
}

/// Number of values that are converted through an f32 buffer at a time.
static constexpr int64_t kWindow = 1024;

/// Calls use(f32 values, first index, count) for windows of 16-bit floats.
template <typename Use>
static void forWindows(qlora_dtype fromType, const void *from, int64_t count,
                       Use use) {
  float window[kWindow];
  for (int64_t done = 0; done < count; done += kWindow) {
    const int64_t run = std::min(kWindow, count - done);
    widen(fromType, elementAt(from, fromType, done), window, run);
    use(window, done, run);
  }
}

void convertRun(qlora_dtype fromType, const void *from, qlora_dtype toType,
                void *to, int64_t count) {
  if (fromType == toType) {
    std::memcpy(to, from, static_cast<size_t>(count) * (dtypeBits(toType) / 8));
    return;
  }
  if (toType == QLORA_DTYPE_F32)
    return widen(fromType, from, static_cast<float *>(to), count);
  if (fromType == QLORA_DTYPE_F32)
    return narrow(static_cast<const float *>(from), toType, to, count);
  forWindows(fromType, from, count,
             [&](const float *window, int64_t first, int64_t run) {
               narrow(window, toType, elementAt(to, toType, first), run);
             });
}

void addRun(qlora_dtype fromType, const void *from, qlora_dtype toType,
            void *to, int64_t count) {
  if (fromType == QLORA_DTYPE_F32)
    return narrowSum(static_cast<const float *>(from), 1.0f, toType, to, count);
  forWindows(fromType, from, count,
             [&](const float *window, int64_t first, int64_t run) {
               narrowSum(window, 1.0f, toType, elementAt(to, toType, first),
                         run);
             });
}

QLORA_VECTOR static void addScaledF32(float factor,
                                      const float *__restrict from,
                                      float *__restrict to, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    to[i] += factor * from[i];
}

void addScaled(float factor, qlora_dtype fromType, const void *from, float *to,
               int64_t count) {
  if (fromType == QLORA_DTYPE_F32)
    return addScaledF32(factor, static_cast<const float *>(from), to, count);
  forWindows(fromType, from, count,
             [&](const float *window, int64_t first, int64_t run) {
               addScaledF32(factor, window, to + first, run);
             });
}

float loadElement(qlora_dtype dtype, const void *base, int64_t index) {
  if (dtype == QLORA_DTYPE_BF16)
    return qlora_load_bf16(base, index);
  if (dtype == QLORA_DTYPE_F16)
    return qlora_load_f16(base, index);
  assert(dtype == QLORA_DTYPE_F32);
  return qlora_load_f32(base, index);
}

void storeElement(qlora_dtype dtype, void *base, int64_t index, float value) {
  if (dtype == QLORA_DTYPE_BF16)
    return qlora_store_bf16(base, index, value);
  if (dtype == QLORA_DTYPE_F16)
    return qlora_store_f16(base, index, value);
  assert(dtype == QLORA_DTYPE_F32);
  qlora_store_f32(base, index, value);
}

QLORA_VECTOR double sumOfProducts(const float *a, const float *b,
                                  int64_t count) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; ++lane)
      lanes[lane] += double(a[i + lane]) * b[i + lane];
  for (; i < count; ++i)
    lanes[i % 8] += double(a[i]) * b[i];
  double sum = 0;
  for (double lane : lanes)
    sum += lane;
  return sum;
}

} // namespace qlora
