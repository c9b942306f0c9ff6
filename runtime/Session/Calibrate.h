// SPDX-License-Identifier: MIT

// `--calibrate`: measures this machine for the compiler's cost model, in a
// few seconds, with the kernels and threads that training uses.
//
//   {"cpu": "...", "cores": 16, "gemm_f32_gflops": 340.1,
//    "gemm_bf16_gflops": 170.2, "copy_gbps": 21.0, "decode_gbps": 9.8}
//
// GEMM: 512 x 2048 x 2048. copy: bytes read and written per second, over more
// than a cache holds. decode: NF4 with double quantisation to f32, a panel
// that stays in cache, bytes written per second. A gigabyte has 10^9 bytes.

#ifndef QLORA_RUNTIME_SESSION_CALIBRATE_H
#define QLORA_RUNTIME_SESSION_CALIBRATE_H

#include <string>

#include "runtime/Core/Status.h"

namespace qlora {

/// Measures and writes `path`; the text that was written.
StatusOr<std::string> calibrate(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_CALIBRATE_H
