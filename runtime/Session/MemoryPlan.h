// SPDX-License-Identifier: MIT

// The memory of a run as tables: planned before step 1, and next to what was
// measured at the end.

#ifndef QLORA_RUNTIME_SESSION_MEMORYPLAN_H
#define QLORA_RUNTIME_SESSION_MEMORYPLAN_H

#include <string>

#include "runtime/Core/ModuleLoader.h"
#include "runtime/Device/Device.h"

namespace qlora {

/// Bytes per arena of one rank, in the order of the ABI.
std::string planText(const LoadedModule &module, const Device &device,
                     int ranks);

/// Planned and allocated bytes per arena, and the process's peak: what is
/// above the arenas is code, libraries and the reading of weights.
std::string measuredText(const LoadedModule &module, const Device &device);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_MEMORYPLAN_H
