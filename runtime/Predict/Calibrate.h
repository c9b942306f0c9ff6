// SPDX-License-Identifier: MIT

// Measures this machine for the compiler's cost model, in a few seconds, with
// the kernels and threads of training. CalibrationRun.h writes the result:
//
//   {"cpu": "...", "cores": 16, "gemm_f32_gflops": 340.1,
//    "gemm_bf16_gflops": 170.2, "copy_gbps": 21.0, "decode_gbps": 9.8,
//    "kernels": {"panel_f32_gflops": 250.3, ...}}
//
// GEMM: 512 x 2048 x 8192, the weight in no cache, without the time to pack the
// weight (pack), which a GEMM of 32 rows shows. copy: bytes read and written
// per second, over more than a cache holds. decode: NF4 with double
// quantisation to f32, a panel that stays in cache, bytes written per second.
// kernels (DeviceProfile.h): panels from the same GEMM with an NF4 weight,
// forward and backward, as the time beyond the cost model's time of the rest;
// attention of 512 tokens, causal, heads of 64. A gigabyte has 10^9 bytes.

#ifndef QLORA_RUNTIME_PREDICT_CALIBRATE_H
#define QLORA_RUNTIME_PREDICT_CALIBRATE_H

#include "runtime/Base/Status.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

StatusOr<DeviceProfile> measureProfile(int threads);

/// Returns name and threads of this machine's CPU as --calibrate writes them,
/// without measured rates.
DeviceProfile profileOfThisMachine();

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_CALIBRATE_H
