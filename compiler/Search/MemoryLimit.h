// SPDX-License-Identifier: MIT

// --memory-limit auto: the memory that is free when the compiler runs, less a
// reserve. Also limits a search to this memory if no limit is given.
//
//   memory limit: 77.4 GiB: NVIDIA H100 80GB HBM3 has 79.0 of 79.6 GiB free,
//   less 1.6 GiB for code, graphs and libraries

#ifndef QLORA_COMPILER_SEARCH_MEMORYLIMIT_H
#define QLORA_COMPILER_SEARCH_MEMORYLIMIT_H

#include "compiler/Search/PlanSettings.h"

namespace qlora {

/// Sets and records the limit as a number of bytes, if it is `auto` or a search
/// needs one. Returns the reason in one line, or an empty string if nothing was
/// set. kUnavailable if the memory cannot be read; the message asks for a
/// number.
StatusOr<std::string> resolveMemoryLimit(PlanSettings &settings);

} // namespace qlora

#endif // QLORA_COMPILER_SEARCH_MEMORYLIMIT_H
