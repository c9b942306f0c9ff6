// SPDX-License-Identifier: MIT

// Measures this machine for the compiler's cost model, in a few seconds, with
// the kernels and threads that training uses. CalibrationRun.h writes it:
//
//   {"cpu": "...", "cores": 16, "gemm_f32_gflops": 340.1,
//    "gemm_bf16_gflops": 170.2, "copy_gbps": 21.0, "decode_gbps": 9.8,
//    "kernels": {"panel_f32_gflops": 250.3, ...}}
//
// GEMM: 512 x 2048 x 8192, the weight not in a cache, without what packing the
// weight takes, which the same with 32 rows shows (pack). copy: bytes read and
// written per second, over more than a cache holds. decode: NF4 with double
// quantisation to f32, a panel that stays in cache, bytes written per second.
// kernels (DeviceProfile.h): panels from the same GEMM with an NF4 weight,
// forward and backward, in the time that it takes beyond what the cost model
// says of the rest; attention of 512 tokens, causal, heads of 64. A gigabyte
// has 10^9 bytes.

#ifndef QLORA_RUNTIME_PREDICT_CALIBRATE_H
#define QLORA_RUNTIME_PREDICT_CALIBRATE_H

#include "runtime/Base/Status.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

/// Measures with `threads` threads.
StatusOr<DeviceProfile> measureProfile(int threads);

/// Name and threads of this machine's CPU as --calibrate writes them, the rates
/// not measured.
DeviceProfile profileOfThisMachine();

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_CALIBRATE_H
