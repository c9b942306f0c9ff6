// SPDX-License-Identifier: MIT

// Estimates the seconds of a kernel on a device from counts of its work. The
// compiler uses it to decide what to recompute and where to decode; the null
// device uses it for predictions.
//
// `Work` holds the counts of a kernel. The time of a kernel on a CPU is
//
//   launch + max(arithmetic + decode, memory) + waiting + packing + functions
//
//   launch       starting a kernel on the rank's threads, and joining them
//   arithmetic   matmuls and attention
//   decode       quantized weights, decoded in cache
//   memory       traffic that overlaps with arithmetic (the roofline)
//   waiting      traffic of panel_matmul: a panel's weight is read before it is
//                multiplied
//   packing      a GEMM's second operand is copied into blocks; this matters if
//                c has few rows
//   functions    exponentials and similar ones: they need the same cores as
//                arithmetic
//
// On a GPU, other warps run while a warp waits. So more overlaps:
//
//   launch + max(arithmetic, decode, instructions, memory)
//
// `instructions` are counted for kernels without matmuls. A kernel that only
// moves memory issues kRowInstructions per byte. The rates come from the device
// profile (DeviceProfile.h).
//
// On a CPU the estimate is right within a factor of about 1.5. That suffices
// for decisions: a GEMM costs a hundred times a norm, and equal ops get equal
// times. Not modelled: GEMMs too small to fill the cores, and caches. All reads
// come from memory, unless withCached is used.

#ifndef QLORA_RUNTIME_KERNELS_COSTMODEL_H
#define QLORA_RUNTIME_KERNELS_COSTMODEL_H

#include <array>

#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Kernels/KernelTable.h"

namespace qlora {

/// Maximum single-lane instructions per byte of a GPU kernel without matmuls;
/// tests/lint/sass.py checks the machine code. At this rate, memory is still
/// the bottleneck on the known GPUs.
inline constexpr double kRowInstructions = 5;
/// A GEMM is thin if one of its sides is at most this. Thin GEMMs, such as
/// those of LoRA, are memory-bound and slower than a copy.
inline constexpr int64_t kThinSide = 64;

/// Implementation and direction of attention; on a GPU each has its own rate.
enum class AttentionKernel {
  kForward, ///< this project's kernel
  kBackward,
  kCudnnForward,
  kCudnnBackward,
  kCount
};

/// Floating-point operations of attention in bf16.
struct AttentionWork {
  double flops = 0;       ///< needed by the causal mask
  double flopsPerKey = 0; ///< extra FLOPs if each query saw one more key
};

/// Device-independent counts of a kernel's work. Counts can be added.
struct Work {
  double f32Flops = 0;  ///< GEMMs with f32 inputs
  double bf16Flops = 0; ///< GEMMs with bf16 inputs
  /// FLOPs of panel_matmul on a CPU and of grouped matmuls on tensor cores.
  /// These have their own rates.
  double panelF32Flops = 0, panelBf16Flops = 0;
  /// FLOPs of attention in f32, which run below the rate of a GEMM.
  double attentionF32Flops = 0;
  std::array<AttentionWork, size_t(AttentionKernel::kCount)> attention = {};
  double bytes = 0;       ///< read and written in memory
  double thinBytes = 0;   ///< part of `bytes` that thin GEMMs move, on a GPU
  double packedBytes = 0; ///< moved to rearrange a GEMM operand, on a CPU
  double waitedBytes = 0; ///< part of `bytes` that is not overlapped, on a CPU
  double decodedNumbers = 0;   ///< weights decoded in cache
  double transcendentals = 0;  ///< exp, sin, sqrt, ..., on a CPU
  double laneInstructions = 0; ///< issued by GPU kernels without matmuls
  double launches = 0;

  Work &operator+=(const Work &other);
  Work &operator*=(double times);
  double gemmFlops() const {
    return f32Flops + bf16Flops + panelF32Flops + panelBf16Flops;
  }
  double attentionFlops() const; ///< needed by the causal mask
};
Work operator+(Work left, const Work &right);

/// Time that a kernel needs on a device, in seconds. `arithmetic` and `memory`
/// overlap; concurrent kernels compete for each.
struct Demand {
  double launch = 0, arithmetic = 0, memory = 0;
  double serial = 0; ///< time that overlaps with nothing

  bool isMemoryBound() const { return memory > arithmetic; }
  /// Returns the seconds without the launch, if no other kernel runs.
  double busy() const {
    return serial + (isMemoryBound() ? memory : arithmetic);
  }
  double seconds() const { return launch + busy(); }
};
Demand demandOf(const Work &work, const DeviceProfile &device);

/// Returns demandOf(...).seconds(): `work` on all cores of `device`.
double secondsOf(const Work &work, const DeviceProfile &device);

/// Seconds to move `bytes` between a GPU and its host; 0 for a CPU.
double busSeconds(double bytes, const DeviceProfile &device);

/// Assumed size of the cache that all cores of a CPU share.
constexpr double kCacheBytes = 32 << 20;

/// Changes the work of a CPU kernel whose input includes `bytes` that have just
/// been written: the bytes that fit in the cache are read from the cache.
Work withCached(Work work, double bytes);

/// Work of a kernel without matmuls: a generated kernel, or a loop over rows.
Work rowWork(double bytes, double transcendentals);

/// Work of c = a . b, or of c += a . b; c is [m, n], the inner dimension k.
Work gemmWork(int64_t m, int64_t n, int64_t k, qlora_dtype a, qlora_dtype b,
              qlora_dtype c, bool accumulates);

/// Extents of causal attention in one layer.
struct AttentionExtents {
  int64_t batch, length, heads, kvHeads, dim, window; ///< window 0: none
};
Work attentionWork(const AttentionExtents &shape, qlora_dtype dtype,
                   bool backward);

/// Returns the work of one launch of a library op, from the launch's constants
/// and dtypes. Assumes one kernel per launch, as on the CPU. Every op has an
/// entry in KernelWork.cpp.
Work kernelWork(const KernelRequest &request);

/// Returns the FLOPs of a launch's matmuls. Reports divide them by the time.
double neededFlops(const KernelRequest &request);

/// Returns the work of each CUDA kernel of a launch, in order. On a GPU,
/// conversions, decodes and GEMMs are separate kernels that do not overlap.
/// `row` is the selected row of Kernels.def; nullptr: the first CUDA row that
/// accepts the request. Defined in CudaWork.cpp.
std::vector<Work> cudaKernelWork(const KernelRequest &request,
                                 const KernelRow *row = nullptr);

/// Returns the seconds of a launch before a row of Kernels.def is selected. On
/// a GPU, this is the sum over the CUDA kernels of the launch.
double secondsOf(const KernelRequest &request, const DeviceProfile &device);

/// Category of a launch in reports.
enum class WorkCategory { kGemm, kAttention, kDecode, kRows, kHead };
WorkCategory categoryOf(const KernelOp &op);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_COSTMODEL_H
