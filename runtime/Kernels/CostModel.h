// SPDX-License-Identifier: MIT

// Seconds of a kernel on a device, from what it does: one model for what to
// recompute, where to decode and the null device's predictions.
//
// A kernel's Work is a handful of counts. Its time on a CPU is
//
//   launch + max(arithmetic + decode, memory) + waiting + packing + functions
//
// because a kernel hides its memory traffic behind its arithmetic or the other
// way round (the roofline), while exponentials keep the same cores busy that
// would do either, and so does packing: a GEMM first copies its second factor
// into blocks, which counts where there are few rows. Panels wait for what they
// read and write: the stored weight is read before it is multiplied with, and
// rows of a and c are in the caches of all cores. On a GPU other warps go on
// meanwhile:
//
//   launch + max(arithmetic, instructions, memory)
//
// where a kernel that only moves memory issues kRowInstructions a byte.
// The rates are the device's (DeviceProfile.h). Good to a factor of about
// 1.5 on a CPU, which is enough to decide: a GEMM costs a hundred times a
// norm, and equal ops get equal times. Not modelled: products that are too
// small to fill the cores, and caches (what a kernel reads comes from memory,
// unless withCached says otherwise).

#ifndef QLORA_RUNTIME_KERNELS_COSTMODEL_H
#define QLORA_RUNTIME_KERNELS_COSTMODEL_H

#include <array>

#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// Instructions of single lanes that a kernel without products issues for each
/// byte it moves: the most that one may have, by the check of their machine
/// code (tests/lint/sass.py). At this many, memory is the longer on the known
/// cards.
inline constexpr double kRowInstructions = 5;
/// A product is thin where one of its sides is at most this: bound by memory,
/// and slower at it than a copy. LoRA's are.
inline constexpr int64_t kThinSide = 64;

/// Whose attention it is: on a GPU they have rates of their own.
enum class AttentionKernel {
  kForward, ///< our own
  kBackward,
  kCudnnForward,
  kCudnnBackward,
  kCount
};

/// Products of attention in bf16.
struct AttentionWork {
  double flops = 0;       ///< that are needed
  double flopsPerKey = 0; ///< more, were there one key more for each query
};

/// What a kernel does, in units of no device. Adds up.
struct Work {
  double f32Flops = 0;  ///< of GEMMs with f32 inputs
  double bf16Flops = 0; ///< of GEMMs with bf16 inputs
  /// Of panel_matmul's products on a CPU, and of grouped ones on tensor cores,
  /// which run at rates of their own.
  double panelF32Flops = 0, panelBf16Flops = 0;
  /// Of attention's products, which run below a GEMM's rate.
  double attentionF32Flops = 0;
  std::array<AttentionWork, size_t(AttentionKernel::kCount)> attention = {};
  double bytes = 0;       ///< read and written in memory
  double thinBytes = 0;   ///< of `bytes` those of thin products, on a GPU
  double packedBytes = 0; ///< read and written to rearrange a factor, on a CPU
  double waitedBytes = 0; ///< of `bytes` those that no arithmetic hides, on a CPU
  double decodedNumbers = 0;   ///< made from 4 bits each, in cache
  double transcendentals = 0;  ///< exp, sin, sqrt, ..., on a CPU
  double laneInstructions = 0; ///< on a GPU, where there are no products
  double launches = 0;

  Work &operator+=(const Work &other);
  Work &operator*=(double times);
  double gemmFlops() const {
    return f32Flops + bf16Flops + panelF32Flops + panelBf16Flops;
  }
  double attentionFlops() const; ///< that are needed
};
Work operator+(Work left, const Work &right);

/// What work asks of a device, in seconds of it. `arithmetic` and `memory`
/// run at the same time; kernels that run at once share each of the two.
struct Demand {
  double launch = 0, arithmetic = 0, memory = 0;
  double serial = 0; ///< that nothing hides

  bool isMemoryBound() const { return memory > arithmetic; }
  /// Without the launch, where nothing else runs.
  double busy() const {
    return serial + (isMemoryBound() ? memory : arithmetic);
  }
  double seconds() const { return launch + busy(); }
};
Demand demandOf(const Work &work, const DeviceProfile &device);

/// demandOf(...).seconds(): of `work` on all cores of `device`.
double secondsOf(const Work &work, const DeviceProfile &device);

/// Of so many bytes over the bus between a card and its host, be they read or
/// written; none where there is one memory.
double busSeconds(double bytes, const DeviceProfile &device);

/// What is taken for the size of a cache that all cores of a CPU share.
constexpr double kCacheBytes = 32 << 20;

/// `work` where `bytes` of what it reads were written just before it, on a
/// CPU: as many of them as a cache holds come from there.
Work withCached(Work work, double bytes);

/// A kernel without products: a generated one, or a walk over rows.
Work rowWork(double bytes, double transcendentals);

/// c = a . b, or c += a . b: m x n, inner dimension k.
Work gemmWork(int64_t m, int64_t n, int64_t k, qlora_dtype a, qlora_dtype b,
              qlora_dtype c, bool accumulates);

/// Causal attention of one layer; the backward does 2.5 times the products.
struct AttentionExtents {
  int64_t batch, length, heads, kvHeads, dim, window; ///< window 0: none
};
Work attentionWork(const AttentionExtents &shape, qlora_dtype dtype,
                   bool backward);

/// A launch of a library op, from its Kernels.def constants and dtypes, where
/// one kernel does all of it, as on the CPU. Every op of Kernels.def has an
/// entry in KernelWork.cpp; asserts on a request of another.
Work kernelWork(const KernelRequest &request);

/// Multiplications and additions of the products that such a launch stands
/// for, which rates in reports are of.
double neededFlops(const KernelRequest &request);

/// The kernels that do a launch on CUDA, one after another: conversions,
/// decodes and products are launches of their own there, so that none hides
/// behind another. `row` is who does it; where no row was selected yet,
/// nullptr stands for the first CUDA row that accepts it. In CudaWork.cpp.
std::vector<Work> cudaKernelWork(const KernelRequest &request,
                                 const KernelRow *row = nullptr);

/// Seconds of a launch on `device`, of which no row was selected yet: on a GPU
/// as its CUDA kernels.
double secondsOf(const KernelRequest &request, const DeviceProfile &device);

/// What a launch is for, in reports.
enum class WorkCategory { kGemm, kAttention, kDecode, kRows, kHead };
WorkCategory categoryOf(const KernelOp &op);

/// True where kernelWork knows the op: for the test that all are known.
bool hasKernelWork(std::string_view op);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_COSTMODEL_H
