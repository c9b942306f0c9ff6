// SPDX-License-Identifier: MIT

// How far something that takes long has come. Whoever does the work calls a
// listener as often as is cheap; whoever shows it (Watch/Metrics.h) decides
// what a terminal or a log gets to see.

#ifndef QLORA_RUNTIME_BASE_PROGRESS_H
#define QLORA_RUNTIME_BASE_PROGRESS_H

#include <cstdint>
#include <functional>

namespace qlora {

/// `done` of `total` units; a total of 0 is not known yet. Called from one
/// thread at a time. An empty function: nobody listens.
using ProgressListener = std::function<void(uint64_t done, uint64_t total)>;

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_PROGRESS_H
