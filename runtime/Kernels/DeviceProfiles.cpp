// SPDX-License-Identifier: MIT

// The cards that have a name. None of these rates was measured by us. Peaks are
// of data sheets; what large kernels reach of them is assumed, and is the same
// share for all cards unless a row says otherwise: an H200's 0.80 of the dense
// bf16 peak in GEMMs, 0.62 and 0.52 of it in attention forward and backward,
// 0.90 of the memory's bandwidth. Of a link, 0.82: a ring's bus bandwidth is
// 370 of NVLink 4's 450 GB/s (NVIDIA/nccl-tests, issue 212).
//
// Assumed alike in all rows: f32 GEMMs (no tensor cores) at 0.75 of the peak;
// functions at 16 per multiprocessor and clock; 1.5 us from one kernel of a
// graph to the next one that waits for it; 20 us for a small all-reduce of a
// node, and as much for each doubling of nodes. NF4 is decoded at copy speed:
// 2.516 bytes move for the 4 of an f32 number.

#include "runtime/Kernels/DeviceProfile.h"

#include <array>
#include <cmath>

using namespace qlora;

namespace {

/// One row, in units that fit on a line.
struct Card {
  std::string_view name, title;
  int64_t multiprocessors;
  double memoryGb;
  double gemmBf16Tflops, gemmF32Tflops;
  double attentionForwardTflops, attentionBackwardTflops;
  double copyGbps, functionGops;
  double nodeLinkGbps, networkGbps;
  int64_t gpusPerNode;
};

constexpr Card kCards[] = {
    // Peaks: 312 bf16, 2.04 TB/s, NVLink 300 GB/s each way, 200 Gb/s for each
    // card. Attention: within the 50 to 73 % of the peak that
    // FlashAttention-2 (Dao, 2023) gives for it.
    {"a100", "NVIDIA A100 SXM 80 GB", 108, 80, 250, 15, 190, 165, 1830, 2400,
     246, 23, 8},
    // Peaks: 989 bf16, 3.35 TB/s, as an H200 otherwise; GEMMs assumed slower
    // than its (700), attention by the same ratio.
    {"h100", "NVIDIA H100 SXM", 132, 80, 700, 50, 540, 450, 2900, 3700, 370,
     48, 8},
    // Peaks: 989 bf16, 4.8 TB/s, NVLink 450 GB/s each way, 400 Gb/s for each
    // card. The rates of the design's estimates.
    {"h200", "NVIDIA H200 SXM", 132, 141, 790, 50, 610, 510, 4300, 3700, 370,
     48, 8},
    // Peaks (HGX): 2250 bf16, 75 f32, 7.7 TB/s, NVLink 900 GB/s each way.
    {"b200", "NVIDIA B200", 148, 180, 1800, 56, 1390, 1160, 6930, 4300, 740,
     48, 8},
    // Peaks: 165 bf16 with f32 sums, 82.6 f32, 1.008 TB/s. No links but PCIe
    // 4.0 through the host, and 25 Gb/s Ethernet.
    {"rtx4090", "NVIDIA GeForce RTX 4090", 128, 24, 132, 62, 102, 86, 907,
     5100, 10, 3, 8},
};

DeviceProfile profileOf(const Card &card) {
  DeviceProfile profile;
  profile.cpu = card.title;
  profile.cores = card.multiprocessors;
  profile.gemmBf16Gflops = card.gemmBf16Tflops * 1e3;
  profile.gemmF32Gflops = card.gemmF32Tflops * 1e3;
  profile.copyGbps = card.copyGbps;
  profile.decodeGbps = std::ceil(card.copyGbps * 4 / 2.516);
  GpuRates &gpu = profile.gpu.emplace();
  gpu.memoryGb = card.memoryGb;
  gpu.attentionForwardGflops = card.attentionForwardTflops * 1e3;
  gpu.attentionBackwardGflops = card.attentionBackwardTflops * 1e3;
  gpu.functionGops = card.functionGops;
  gpu.launchMicroseconds = 1.5;
  gpu.gpusPerNode = card.gpusPerNode;
  gpu.nodeLinkGbps = card.nodeLinkGbps;
  gpu.networkGbps = card.networkGbps;
  gpu.allReduceMicroseconds = 20;
  return profile;
}

} // namespace

std::span<const std::string_view> qlora::deviceProfileNames() {
  static const auto names = [] {
    std::array<std::string_view, std::size(kCards)> names;
    for (size_t i = 0; i < names.size(); ++i)
      names[i] = kCards[i].name;
    return names;
  }();
  return names;
}

StatusOr<DeviceProfile>
qlora::findDeviceProfile(const std::string &nameOrPath) {
  for (const Card &card : kCards)
    if (nameOrPath == card.name)
      return profileOf(card);
  StatusOr<DeviceProfile> profile = readDeviceProfile(nameOrPath);
  if (profile.isOk() || profile.status().code() != StatusCode::kNotFound)
    return profile;
  return Status::error(StatusCode::kNotFound,
                       "'{}' is neither a known card ({}) nor a file that can "
                       "be read; qlora-run --calibrate makes one of this "
                       "machine",
                       nameOrPath, fmt::join(deviceProfileNames(), ", "));
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
    return Status::invalid("the device profile '{}' is of a {}, but the "
                           "program is for {}",
                           name, profile.gpu ? "GPU" : "CPU", target);
  return profile;
}
