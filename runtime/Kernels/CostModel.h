// SPDX-License-Identifier: MIT

// Seconds of an op on a device, from what it does: one model for what to
// recompute, where to decode and the null device.
//
// An op's Work is a handful of counts. Its time is
//
//   launch + max(arithmetic, memory) + decode + transcendentals
//
// because a GEMM hides its memory traffic behind its arithmetic or the other
// way round (the roofline), while decoding and exponentials keep the same
// cores busy that would do either. The rates are the device's
// (DeviceProfile.h). Good to a factor of about 1.5, which is enough: a GEMM
// costs a hundred times a norm, and equal ops get equal times.

#ifndef QLORA_RUNTIME_KERNELS_COSTMODEL_H
#define QLORA_RUNTIME_KERNELS_COSTMODEL_H

#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// What an op does, in units of no device. Adds up.
struct Work {
  double f32Flops = 0;   ///< of GEMMs with f32 inputs
  double bf16Flops = 0;  ///< of GEMMs with bf16 inputs
  /// Of attention's small products, which run far below a GEMM's rate.
  double attentionFlops = 0;
  double bytes = 0;           ///< read and written in memory
  double decodedNumbers = 0;  ///< made from 4 bits each, in cache
  double transcendentals = 0; ///< exp, sin, sqrt, ...
  int64_t launches = 0;

  Work &operator+=(const Work &other);
};
Work operator+(Work left, const Work &right);

/// Seconds of `work` on all cores of `device`.
double secondsOf(const Work &work, const DeviceProfile &device);

/// A generated kernel.
Work rowWork(double bytes, double transcendentals);

/// c = a . b, or c += a . b: m x n, inner dimension k.
Work gemmWork(int64_t m, int64_t n, int64_t k, qlora_dtype a, qlora_dtype b,
              qlora_dtype c, bool accumulates);

/// Causal attention of one layer; the backward does 2.5 times the products.
struct AttentionShape {
  int64_t batch, length, heads, kvHeads, dim, window; ///< window 0: none
};
Work attentionWork(const AttentionShape &shape, qlora_dtype dtype,
                   bool backward);

/// A launch of a library op, from its Kernels.def constants and dtypes. Every
/// op of Kernels.def has an entry; asserts on a request of another.
Work kernelWork(const KernelRequest &request);

/// True where kernelWork knows the op: for the test that all are known.
bool hasKernelWork(std::string_view op);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_COSTMODEL_H
