// SPDX-License-Identifier: MIT

// --memory-limit auto: what is free on this machine when it compiles.
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
  std::string reason; ///< one line: of what, and what is kept back
};

/// Of `target` "cuda" the first card that is visible; of "cpu" this machine's
/// share of one of `ranks` ranks. kUnavailable where that cannot be asked: the line says to give
/// a number.
StatusOr<MemoryLimit> machineMemoryLimit(const std::string &target,
                                         int64_t ranks);

/// The same of a card that need not be here, all of it free.
StatusOr<MemoryLimit> cardMemoryLimit(const DeviceProfile &card);

} // namespace qlora

#endif // QLORA_TOOLS_QLORACC_MEMORYLIMIT_H
