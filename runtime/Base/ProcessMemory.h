// SPDX-License-Identifier: MIT

// Resident memory of this process, as Linux counts it. Pages of a base that
// is shared by local ranks count in each of them.

#ifndef QLORA_RUNTIME_BASE_PROCESSMEMORY_H
#define QLORA_RUNTIME_BASE_PROCESSMEMORY_H

#include <cstdint>

namespace qlora {

struct ProcessMemory {
  uint64_t residentBytes = 0; ///< VmRSS
  uint64_t peakBytes = 0;     ///< VmHWM: the largest since the start
};

/// Zeros where /proc does not say.
ProcessMemory readProcessMemory();

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_PROCESSMEMORY_H
