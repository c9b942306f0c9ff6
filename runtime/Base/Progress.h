// SPDX-License-Identifier: MIT

// Progress of long work. The worker calls a listener as often as is cheap. The
// listener (Watch/Metrics.h) decides what a terminal or a log shows.

#ifndef QLORA_RUNTIME_BASE_PROGRESS_H
#define QLORA_RUNTIME_BASE_PROGRESS_H

#include <cstdint>
#include <functional>

namespace qlora {

/// Receives progress: `done` of `total` units, where a total of 0 is unknown.
/// Calls come from one thread at a time. The function may be empty.
using ProgressListener = std::function<void(uint64_t done, uint64_t total)>;

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_PROGRESS_H
