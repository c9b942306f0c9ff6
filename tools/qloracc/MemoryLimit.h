// SPDX-License-Identifier: MIT

// --memory-limit auto: the memory that is free when the compiler runs.
//
//   memory limit: 77.4 GiB: NVIDIA H100 80GB HBM3 has 79.0 of 79.6 GiB free,
//   less 1.6 GiB for code, graphs and libraries

#ifndef QLORA_TOOLS_QLORACC_MEMORYLIMIT_H
#define QLORA_TOOLS_QLORACC_MEMORYLIMIT_H

#include <cstdint>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string reason; ///< one line: the memory, its free bytes, the reserve
};

/// Returns the free memory of the first visible GPU (`target` "cuda"), or of
/// this machine divided by `ranks` ("cpu"), less a reserve. kUnavailable if it
/// cannot be read; the message asks for a number.
StatusOr<MemoryLimit> machineMemoryLimit(const std::string &target,
                                         int64_t ranks);

/// Returns the memory of a GPU, which need not be in this machine, less a
/// reserve.
StatusOr<MemoryLimit> gpuMemoryLimit(const DeviceProfile &gpu);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_MEMORYLIMIT_H
