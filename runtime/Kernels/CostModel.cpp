// SPDX-License-Identifier: MIT

// The cost model: converts counts to seconds (CostModel.h).

#include "runtime/Kernels/CostModel.h"

#include <algorithm>

using namespace qlora;

/// Seconds to start a kernel on a rank's threads and to join the threads.
static constexpr double kLaunchSeconds = 5e-6;
/// Vectorised exponentials and similar functions per core and second.
static constexpr double kTranscendentalRate = 4e8;
/// Speed of the cache that all cores share, relative to memory.
static constexpr double kCacheSpeed = 4.0;

/// All counts in Work except the counts of bf16 attention.
static constexpr double Work::*kCounts[] = {
    &Work::f32Flops,       &Work::bf16Flops,         &Work::panelF32Flops,
    &Work::panelBf16Flops, &Work::attentionF32Flops, &Work::bytes,
    &Work::thinBytes,      &Work::packedBytes,       &Work::waitedBytes,
    &Work::decodedNumbers, &Work::transcendentals,   &Work::laneInstructions,
    &Work::launches};

Work &Work::operator+=(const Work &other) {
  for (double Work::*count : kCounts)
    this->*count += other.*count;
  for (size_t i = 0; i < attention.size(); ++i) {
    attention[i].flops += other.attention[i].flops;
    attention[i].flopsPerKey += other.attention[i].flopsPerKey;
  }
  return *this;
}

Work &Work::operator*=(double times) {
  for (double Work::*count : kCounts)
    this->*count *= times;
  for (AttentionWork &products : attention) {
    products.flops *= times;
    products.flopsPerKey *= times;
  }
  return *this;
}

/// Returns the FLOPs of all bf16 attention kernels.
static double attentionBf16Flops(const Work &work) {
  double flops = 0;
  for (const AttentionWork &products : work.attention)
    flops += products.flops;
  return flops;
}

double Work::attentionFlops() const {
  return attentionF32Flops + attentionBf16Flops(*this);
}

Work qlora::operator+(Work left, const Work &right) { return left += right; }

/// Returns the seconds of all matmuls and attention on a CPU.
static double productSeconds(const Work &work, const DeviceProfile &device) {
  const CpuKernelRates rates = device.cpuKernels();
  return 1e-9 * (work.f32Flops / device.gemmF32Gflops +
                 work.bf16Flops / device.gemmBf16Gflops +
                 work.panelF32Flops / rates.panelF32Gflops +
                 work.panelBf16Flops / rates.panelBf16Gflops +
                 work.attentionF32Flops / rates.attentionF32Gflops +
                 attentionBf16Flops(work) / rates.attentionBf16Gflops);
}

/// Returns the seconds of bf16 attention on a GPU.
static double attentionSeconds(const Work &work, const GpuRates &gpu) {
  static_assert(size_t(AttentionKernel::kCount) == 4, "a rate for each");
  const AttentionRate *rates[] = {
      &gpu.cudaAttention.forward, &gpu.cudaAttention.backward,
      &gpu.cudnnAttention.forward, &gpu.cudnnAttention.backward};
  double seconds = 0;
  for (size_t i = 0; i < work.attention.size(); ++i)
    if (work.attention[i].flops > 0)
      seconds += rates[i]->seconds(work.attention[i].flops,
                                   work.attention[i].flopsPerKey);
  return seconds;
}

/// Rate of grouped matmuls on tensor cores, relative to a library GEMM.
/// Assumed, not measured: tiles have few rows, and wgmma is not used.
static constexpr double kGroupedRate = 0.5;

static double productSeconds(const Work &work, const DeviceProfile &device,
                             const GpuRates &gpu) {
  return 1e-9 *
             ((work.f32Flops + work.panelF32Flops) / device.gemmF32Gflops +
              (work.bf16Flops + work.panelBf16Flops / kGroupedRate) /
                  device.gemmBf16Gflops +
              work.attentionF32Flops / device.cpuKernels().attentionF32Gflops) +
         attentionSeconds(work, gpu);
}

/// Returns the transcendentals of `work` that take extra time: none for
/// attention, whose FLOP rates include them.
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
  demand.arithmetic = productSeconds(work, device, *device.gpu);
  if (work.thinBytes > 0)
    demand.memory += work.thinBytes * (1 / (device.gpu->thinGemmGbps * 1e9) -
                                       1 / (device.copyGbps * 1e9));
  // Decodes and lane instructions overlap with tensor cores, as memory does.
  demand.memory =
      std::max({demand.memory, decode,
                work.laneInstructions / (device.gpu->issueGops * 1e9)});
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

double qlora::busSeconds(double bytes, const DeviceProfile &device) {
  return device.gpu ? bytes / (device.gpu->hostLinkGbps * 1e9) : 0;
}

Work qlora::withCached(Work work, double bytes) {
  work.bytes -=
      std::min({bytes, work.bytes, kCacheBytes}) * (1 - 1 / kCacheSpeed);
  return work;
}
