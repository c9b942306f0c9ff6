// SPDX-License-Identifier: MIT

// Measures this machine for the compiler's cost model, in a few seconds, with
// the kernels and threads of training. CalibrationRun.h writes the result:
//
//   {"cpu": "...", "cores": 16, "gemm_f32_gflops": 340.1,
//    "gemm_bf16_gflops": 170.2, "copy_gbps": 21.0, "decode_gbps": 9.8,
//    "kernels": {"panel_f32_gflops": 250.3, ...}}
//
//   gemm_*       a GEMM of 512 x 2048 x 8192, with a weight that is in no
//                cache, without the time to pack the weight
//   copy_gbps    bytes read and written, in more memory than a cache holds
//   decode_gbps  f32 bytes decoded from NF4, with double quantization, into a
//                panel that stays in cache
//   kernels      CpuKernelRates (DeviceProfile.h)
//     panel_*      the same GEMM with an NF4 weight, less the modelled time of
//                  its other work
//     attention_*  causal attention with 512 tokens and heads of 64
//     pack_gbps    packing a weight, as measured with a GEMM of 32 rows
//
// A gigabyte has 10^9 bytes.

#ifndef QLORA_RUNTIME_PREDICT_CALIBRATE_H
#define QLORA_RUNTIME_PREDICT_CALIBRATE_H

#include "runtime/Base/Status.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

StatusOr<DeviceProfile> measureProfile(int threads);

/// Returns the name and threads of this machine's CPU as --calibrate writes
/// them, without measured rates.
DeviceProfile profileOfThisMachine();

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_CALIBRATE_H
