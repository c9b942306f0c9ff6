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
  std::string_view words; ///< of the driver's name, such as "rtx 4090"
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
    // As the row below, with 1.555 TB/s.
    {"a100-40",
     "NVIDIA A100 SXM 40 GB",
     "a100 sxm4 40gb",
     108,
     40,
     1.41,
     250,
     15,
     {{150, 190}, {120, 165}},
     {{138, 148}, {87, 93}},
     1400,
     246,
     23,
     8,
     26},
    // Peaks: 312 bf16, 2.04 TB/s, NVLink 300 GB/s each way, 200 Gb/s per GPU.
    // cuDNN's attention at 8,192 tokens: assumed within 50 to 73 % of the peak,
    // like FlashAttention-2 (Dao, 2023). At 2,048: the H200's ratio.
    {"a100",
     "NVIDIA A100 SXM 80 GB",
     "a100",
     108,
     80,
     1.41,
     250,
     15,
     {{150, 190}, {120, 165}},
     {{138, 148}, {87, 93}},
     1830,
     246,
     23,
     8,
     26},
    // Peaks: 989 bf16, 3.35 TB/s, otherwise as an H200. Assumed: GEMMs reach
    // 700 TFLOP/s (H200: 790), and cuDNN's attention is slower by the same
    // ratio. Copies: 0.87 of the peak.
    {"h100",
     "NVIDIA H100 SXM",
     "h100",
     132,
     80,
     1.755,
     700,
     50,
     {{425, 540}, {328, 450}},
     {{210, 225}, {130, 140}},
     2900,
     370,
     48,
     8,
     52},
    // Peaks: 989 bf16, 4.8 TB/s, NVLink 450 GB/s each way, 400 Gb/s per GPU.
    {"h200",
     "NVIDIA H200 SXM",
     "h200",
     132,
     141,
     1.755,
     790,
     50,
     {{480, 610}, {370, 510}},
     {{210, 225}, {130, 140}},
     4300,
     370,
     48,
     8,
     52},
    // Peaks (HGX): 2250 bf16, 75 f32, 7.7 TB/s, NVLink 900 GB/s each way.
    // cuDNN's attention is scaled by the peaks.
    {"b200",
     "NVIDIA B200",
     "b200",
     148,
     180,
     1.85,
     1800,
     56,
     {{1090, 1390}, {840, 1160}},
     {{249, 266}, {156, 167}},
     6930,
     740,
     48,
     8,
     52},
    // All rows below have no NVLink in use. Links: PCIe 4.0 (5.0 for Blackwell)
    // through the host, and 25 Gb/s Ethernet. cuDNN's attention is scaled by
    // the peaks. This project's attention is limited by the tensor cores, not
    // by shared memory: half of the bf16 peak at 8,192 tokens. In the backward,
    // 5 of 7 matmuls are needed.
    // Peaks: 71 bf16 with f32 sums, 35.6 f32, 0.936 TB/s.
    {"rtx3090",
     "NVIDIA GeForce RTX 3090",
     "rtx 3090",
     82,
     24,
     1.695,
     57,
     27,
     {{34.5, 43.8}, {26.6, 36.6}},
     {{33.2, 35.5}, {23.7, 25.4}},
     842,
     10,
     3,
     8,
     26},
    // Peaks: 125 bf16, 31.2 f32, 0.6 TB/s.
    {"a10",
     "NVIDIA A10",
     "a10",
     72,
     24,
     1.695,
     100,
     23,
     {{60.7, 77.1}, {46.8, 64.5}},
     {{58.4, 62.5}, {41.7, 44.6}},
     540,
     10,
     3,
     8,
     26},
    // Peaks: 121 bf16, 30.3 f32, 0.3 TB/s.
    {"l4",
     "NVIDIA L4",
     "l4",
     58,
     24,
     2.04,
     97,
     23,
     {{58.7, 74.6}, {45.3, 62.4}},
     {{56.5, 60.5}, {40.4, 43.2}},
     270,
     10,
     3,
     8,
     26},
    // Peaks: 362 bf16, 91.6 f32, 0.864 TB/s.
    {"l40s",
     "NVIDIA L40S",
     "l40s",
     142,
     48,
     2.52,
     290,
     69,
     {{176, 223}, {135, 187}},
     {{169, 181}, {121, 129}},
     778,
     10,
     3,
     8,
     26},
    // Peaks: 165 bf16 with f32 sums, 82.6 f32, 1.008 TB/s.
    {"rtx4090",
     "NVIDIA GeForce RTX 4090",
     "rtx 4090",
     128,
     24,
     2.52,
     132,
     62,
     {{80, 102}, {62, 86}},
     {{78, 83}, {56, 60}},
     907,
     10,
     3,
     8,
     26},
    // Peaks: 209.5 bf16 with f32 sums, 104.8 f32, 1.792 TB/s.
    {"rtx5090",
     "NVIDIA GeForce RTX 5090",
     "rtx 5090",
     170,
     32,
     2.407,
     168,
     79,
     {{102, 129}, {78, 108}},
     {{98, 105}, {70, 75}},
     1613,
     20,
     3,
     8,
     52},
    // Peaks of the workstation edition: 503.8 bf16, 126 f32, 1.792 TB/s.
    {"rtxpro6000",
     "NVIDIA RTX PRO 6000 Blackwell",
     "rtx pro 6000 blackwell",
     188,
     96,
     2.617,
     403,
     94,
     {{245, 311}, {189, 260}},
     {{235, 252}, {168, 180}},
     1613,
     20,
     3,
     8,
     52},
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

/// Returns the words of a GPU's name in lower case, each between spaces.
static std::string wordsOfGpu(std::string_view driverName) {
  std::string words = " ";
  for (const char letter : driverName) {
    const auto code = static_cast<unsigned char>(letter);
    words += std::isalnum(code) ? static_cast<char>(std::tolower(code)) : ' ';
  }
  return words + " ";
}

std::optional<DeviceProfile> qlora::profileOfGpu(std::string_view driverName) {
  const std::string words = wordsOfGpu(driverName);
  const auto has = [&](std::string_view some) {
    return words.find(fmt::format(" {} ", some)) != std::string::npos;
  };
  // Profiles do not apply to other variants of a chip, or to MIG instances.
  for (const char *other :
       {"mig", "pcie", "nvl", "laptop", "ti", "super", "d", "max"})
    if (has(other))
      return std::nullopt;
  for (const Gpu &gpu : kGpus)
    if (has(gpu.words))
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
