// SPDX-License-Identifier: MIT

// The cost model: seconds of counts (CostModel.h).

#include "runtime/Kernels/CostModel.h"

#include <algorithm>

using namespace qlora;

/// Starting a kernel on the threads of a rank and waiting for the last.
static constexpr double kLaunchSeconds = 5e-6;
/// exp and its like, vectorised, per core and second.
static constexpr double kTranscendentalRate = 4e8;
/// How much faster than memory a cache is that all cores share.
static constexpr double kCacheSpeed = 4.0;
/// What is taken for the size of such a cache.
static constexpr double kCacheBytes = 32 << 20;

Work &Work::operator+=(const Work &other) {
  f32Flops += other.f32Flops;
  bf16Flops += other.bf16Flops;
  panelF32Flops += other.panelF32Flops;
  panelBf16Flops += other.panelBf16Flops;
  attentionF32Flops += other.attentionF32Flops;
  attentionForwardFlops += other.attentionForwardFlops;
  attentionBackwardFlops += other.attentionBackwardFlops;
  bytes += other.bytes;
  packedBytes += other.packedBytes;
  waitedBytes += other.waitedBytes;
  decodedNumbers += other.decodedNumbers;
  transcendentals += other.transcendentals;
  launches += other.launches;
  return *this;
}

Work &Work::operator*=(double times) {
  for (double *count :
       {&f32Flops, &bf16Flops, &panelF32Flops, &panelBf16Flops,
        &attentionF32Flops, &attentionForwardFlops, &attentionBackwardFlops,
        &bytes, &packedBytes, &waitedBytes, &decodedNumbers, &transcendentals,
        &launches})
    *count *= times;
  return *this;
}

Work qlora::operator+(Work left, const Work &right) { return left += right; }

/// Products on a CPU.
static double productSeconds(const Work &work, const DeviceProfile &device) {
  const CpuKernelRates rates = device.cpuKernels();
  return 1e-9 * (work.f32Flops / device.gemmF32Gflops +
                 work.bf16Flops / device.gemmBf16Gflops +
                 work.panelF32Flops / rates.panelF32Gflops +
                 work.panelBf16Flops / rates.panelBf16Gflops +
                 work.attentionF32Flops / rates.attentionF32Gflops +
                 (work.attentionForwardFlops + work.attentionBackwardFlops) /
                     rates.attentionBf16Gflops);
}

/// On a GPU a panel is a decoded weight.
static double productSeconds(const Work &work, const DeviceProfile &device,
                             const GpuRates &gpu) {
  return 1e-9 *
         ((work.f32Flops + work.panelF32Flops) / device.gemmF32Gflops +
          (work.bf16Flops + work.panelBf16Flops) / device.gemmBf16Gflops +
          work.attentionF32Flops / device.cpuKernels().attentionF32Gflops +
          work.attentionForwardFlops / gpu.attentionForwardGflops +
          work.attentionBackwardFlops / gpu.attentionBackwardGflops);
}

/// An attention kernel's rate is that of the kernel, exponentials included.
static double functionsOf(const Work &work) {
  return work.attentionFlops() > 0 ? 0 : work.transcendentals;
}

Demand qlora::demandOf(const Work &work, const DeviceProfile &device) {
  const double decode = 4 * work.decodedNumbers / (device.decodeGbps * 1e9);
  Demand demand;
  demand.memory = work.bytes / (device.copyGbps * 1e9);
  if (!device.gpu) {
    const double waited = work.waitedBytes / (device.copyGbps * 1e9);
    demand.memory -= waited;
    demand.launch = work.launches * kLaunchSeconds;
    demand.arithmetic = productSeconds(work, device) + decode;
    demand.serial =
        waited + work.packedBytes / (device.cpuKernels().packGbps * 1e9) +
        functionsOf(work) / (kTranscendentalRate * device.cores);
    return demand;
  }
  demand.launch = work.launches * device.gpu->launchMicroseconds * 1e-6;
  demand.arithmetic =
      std::max(productSeconds(work, device, *device.gpu),
               functionsOf(work) / (device.gpu->functionGops * 1e9));
  // Decoding keeps the memory busy, and not what GEMMs multiply with.
  demand.memory = std::max(demand.memory, decode);
  return demand;
}

double qlora::secondsOf(const Work &work, const DeviceProfile &device) {
  return demandOf(work, device).seconds();
}

double qlora::secondsOf(const KernelRequest &request,
                        const DeviceProfile &device) {
  if (!device.gpu)
    return secondsOf(kernelWork(request), device);
  double seconds = 0;
  for (const Work &work : cudaKernelWork(request))
    seconds += secondsOf(work, device);
  return seconds;
}

Work qlora::withCached(Work work, double bytes) {
  work.bytes -=
      std::min({bytes, work.bytes, kCacheBytes}) * (1 - 1 / kCacheSpeed);
  return work;
}
