// SPDX-License-Identifier: MIT

// Profiles of known GPUs. None of these rates was measured by this project.
// Peaks (TFLOP/s, TB/s) come from data sheets. The fraction of the peak that
// large kernels reach is assumed. Unless a row says otherwise, it is:
//
//   0.80  bf16 GEMMs: of the dense peak
//   0.75  f32 GEMMs, without tensor cores
//   0.90  copies: of the memory bandwidth
//   0.54  thin GEMMs: 0.6 of the copy rate
//   0.82  NVLink: with NVLink 4, a ring has a bus bandwidth of 370 of 450 GB/s
//         (NVIDIA/nccl-tests, issue 212)
//   0.82  bus to the host: PCIe 4.0 with 31.5, or 5.0 with 63 GB/s each way
//   0.92  or more: networks
//
// cuDNN's attention on an H200: 480 TFLOP/s forward and 370 backward at 2,048
// tokens (NVIDIA's table for cuDNN 9.19), 610 and 510 at 8,192.
//
// This project's attention (Cuda/Device/AttentionBF16.cu, AttentionGradBF16.cu)
// is limited by shared memory, of which a multiprocessor reads 128 bytes per
// clock. With 128 dimensions, a warp multiplies 16 rows with a tile of 64 rows
// (forward) or 32 rows (backward). For one tile it needs:
//
//                                      forward   backward
//   m16n8k16, of 4,096 FLOPs each          128        224
//   m16n8k16 without recomputation         128        160
//   loads of 512 bytes                      72        144
//   needed FLOPs per clock, at most      1,820      1,140
//
// Half of this rate is assumed, because two blocks of four warps alternate with
// exponentials and three barriers per tile. At 8,192 tokens, 1.07 times the
// rate is assumed: the diagonal cuts fewer tiles.
//
// Assumed for all rows: a multiprocessor issues 128 single-lane instructions
// per clock, at the boost clock. The gap between dependent kernels of a graph
// is 1.5 us. A small all-reduce takes 20 us in a node, and as much for each
// doubling of nodes. NF4 is decoded at copy speed: for each value, 0.516 bytes
// are read and 2 bytes written. decodeGbps counts 4 bytes for each value.

#include "runtime/Kernels/DeviceProfile.h"

#include <array>
#include <cctype>
#include <cmath>

using namespace qlora;

namespace {

/// One row of the table of GPUs. Gbps members are in 10^9 bytes per second.
struct Gpu {
  std::string_view name, title;
  int64_t multiprocessors;
  double memoryGb;
  double clockGhz;
  double gemmBf16Tflops, gemmF32Tflops;
  AttentionRates cudnn, own; ///< TFLOP/s
  double copyGbps;
  double nodeLinkGbps, networkGbps;
  int64_t gpusPerNode;
  double hostLinkGbps;
};

constexpr Gpu kGpus[] = {
    // Peaks: 312 bf16, 2.04 TB/s, NVLink 300 GB/s each way, 200 Gb/s per GPU.
    // cuDNN's attention at 8,192 tokens: assumed within 50 to 73 % of the peak,
    // like FlashAttention-2 (Dao, 2023). At 2,048: the H200's ratio.
    {"a100", "NVIDIA A100 SXM 80 GB", 108, 80, 1.41, 250, 15,
     {{150, 190}, {120, 165}}, {{138, 148}, {87, 93}}, 1830, 246, 23, 8, 26},
    // Peaks: 989 bf16, 3.35 TB/s, otherwise as an H200. Assumed: GEMMs reach
    // 700 TFLOP/s (H200: 790), and cuDNN's attention is slower by the same
    // ratio. Copies: 0.87 of the peak.
    {"h100", "NVIDIA H100 SXM", 132, 80, 1.755, 700, 50,
     {{425, 540}, {328, 450}}, {{210, 225}, {130, 140}}, 2900, 370, 48, 8, 52},
    // Peaks: 989 bf16, 4.8 TB/s, NVLink 450 GB/s each way, 400 Gb/s per GPU.
    {"h200", "NVIDIA H200 SXM", 132, 141, 1.755, 790, 50,
     {{480, 610}, {370, 510}}, {{210, 225}, {130, 140}}, 4300, 370, 48, 8, 52},
    // Peaks (HGX): 2250 bf16, 75 f32, 7.7 TB/s, NVLink 900 GB/s each way.
    // cuDNN's attention is scaled by the peaks.
    {"b200", "NVIDIA B200", 148, 180, 1.85, 1800, 56,
     {{1090, 1390}, {840, 1160}}, {{249, 266}, {156, 167}},
     6930, 740, 48, 8, 52},
    // Peaks: 165 bf16 with f32 sums, 82.6 f32, 1.008 TB/s. Links: PCIe 4.0
    // through the host, and 25 Gb/s Ethernet. cuDNN's attention is scaled by
    // the peaks. This project's attention is limited by the tensor cores, not
    // by shared memory: half of the bf16 peak at 8,192 tokens. In the backward,
    // 5 of 7 matmuls are needed.
    {"rtx4090", "NVIDIA GeForce RTX 4090", 128, 24, 2.52, 132, 62,
     {{80, 102}, {62, 86}}, {{78, 83}, {56, 60}}, 907, 10, 3, 8, 26},
};

AttentionRate inGflops(const AttentionRate &tflops) {
  return {tflops.at2k * 1e3, tflops.at8k * 1e3};
}

AttentionRates inGflops(const AttentionRates &tflops) {
  return {inGflops(tflops.forward), inGflops(tflops.backward)};
}

DeviceProfile profileOf(const Gpu &gpu) {
  DeviceProfile profile;
  profile.cpu = gpu.title;
  profile.cores = gpu.multiprocessors;
  profile.gemmBf16Gflops = gpu.gemmBf16Tflops * 1e3;
  profile.gemmF32Gflops = gpu.gemmF32Tflops * 1e3;
  profile.copyGbps = gpu.copyGbps;
  profile.decodeGbps = std::ceil(gpu.copyGbps * 4 / 2.516);
  GpuRates &rates = profile.gpu.emplace();
  rates.memoryGb = gpu.memoryGb;
  rates.cudnnAttention = inGflops(gpu.cudnn);
  rates.cudaAttention = inGflops(gpu.own);
  rates.thinGemmGbps = 0.6 * gpu.copyGbps;
  rates.issueGops = double(gpu.multiprocessors) * 128 * gpu.clockGhz;
  rates.launchMicroseconds = 1.5;
  rates.gpusPerNode = gpu.gpusPerNode;
  rates.nodeLinkGbps = gpu.nodeLinkGbps;
  rates.networkGbps = gpu.networkGbps;
  rates.allReduceMicroseconds = 20;
  rates.hostLinkGbps = gpu.hostLinkGbps;
  return profile;
}

} // namespace

std::span<const std::string_view> qlora::knownGpus() {
  static const auto names = [] {
    std::array<std::string_view, std::size(kGpus)> names;
    for (size_t i = 0; i < names.size(); ++i)
      names[i] = kGpus[i].name;
    return names;
  }();
  return names;
}

std::optional<DeviceProfile> qlora::profileOfGpu(std::string_view driverName) {
  std::string name;
  for (const char letter : driverName)
    if (letter != ' ')
      name +=
          static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  // Profiles do not apply to other variants of a chip, or to MIG instances.
  for (const std::string_view other : {"mig", "pcie", "nvl", "laptop"})
    if (name.find(other) != std::string::npos)
      return std::nullopt;
  for (const Gpu &gpu : kGpus)
    if (name.find(gpu.name) != std::string::npos)
      return profileOf(gpu);
  return std::nullopt;
}

StatusOr<DeviceProfile>
qlora::findDeviceProfile(const std::string &nameOrPath) {
  for (const Gpu &gpu : kGpus)
    if (nameOrPath == gpu.name)
      return profileOf(gpu);
  StatusOr<DeviceProfile> profile = readDeviceProfile(nameOrPath);
  if (profile.isOk() || profile.status().code() != StatusCode::kNotFound)
    return profile;
  return Status::notFound(
      "'{}' is neither a known GPU ({}) nor a readable file; "
      "write one for this machine with qlora-run --calibrate",
      nameOrPath, fmt::join(knownGpus(), ", "));
}

StatusOr<DeviceProfile>
qlora::deviceProfileOrDefault(const std::string &nameOrPath,
                              const std::string &target) {
  const bool isCuda = target == "cuda";
  if (nameOrPath.empty() && !isCuda)
    return DeviceProfile();
  const std::string name = nameOrPath.empty() ? "h100" : nameOrPath;
  QLORA_ASSIGN_OR_RETURN(DeviceProfile profile, findDeviceProfile(name));
  if (profile.gpu.has_value() != isCuda)
    return Status::invalid("the device profile '{}' describes a {}, but the "
                           "program is for {}; use another profile",
                           name, profile.gpu ? "GPU" : "CPU", target);
  return profile;
}
