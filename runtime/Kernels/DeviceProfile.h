// SPDX-License-Identifier: MIT

// What a machine is able to do, as `qlora-run --calibrate` measured it. An
// input of the compile like any other: the same profile gives the same
// train.so. Where none is given, a shipped default is used.
//
//   {"cpu": "AMD EPYC 9B14", "cores": 8, "gemm_f32_gflops": 620.0,
//    "gemm_bf16_gflops": 1100.0, "copy_gbps": 41.0, "decode_gbps": 22.0}

#ifndef QLORA_RUNTIME_KERNELS_DEVICEPROFILE_H
#define QLORA_RUNTIME_KERNELS_DEVICEPROFILE_H

#include <string>

#include "runtime/Core/Status.h"

namespace qlora {

/// Rates of all cores of one rank together. The default is an AVX-512 server
/// with two cores; only ratios matter for most decisions.
struct DeviceProfile {
  std::string cpu = "default";
  int64_t cores = 2;
  /// Of a large GEMM, 10^9 multiplications and additions per second, with f32
  /// and with bf16 inputs (f32 sums).
  double gemmF32Gflops = 170.0;
  double gemmBf16Gflops = 170.0;
  /// Of a large copy, 10^9 bytes per second, read and written ones both
  /// counted.
  double copyGbps = 20.0;
  /// Of decoding NF4 in cache, 10^9 bytes of f32 numbers made per second.
  double decodeGbps = 12.0;
};

/// Reads device.json. Every key has to be there, of the right type, and the
/// rates positive; errors name the file and the key. Unknown keys are
/// refused.
StatusOr<DeviceProfile> readDeviceProfile(const std::string &path);

/// The profile at `path`; for an empty path the default of the target (cpu, or
/// cuda: a card of the H100's kind).
StatusOr<DeviceProfile> deviceProfileOrDefault(const std::string &path,
                                               const std::string &target);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_DEVICEPROFILE_H
