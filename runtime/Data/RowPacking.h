// SPDX-License-Identifier: MIT

// Implements --packing, which puts several rows into one sequence.

#ifndef QLORA_RUNTIME_DATA_ROWPACKING_H
#define QLORA_RUNTIME_DATA_ROWPACKING_H

#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

/// First-fit packing in order. Returns the bin of each row, such that the
/// lengths in a bin add up to at most `capacity`. Bins are numbered in order of
/// their first row. O(n log n).
std::vector<int64_t> packFirstFit(std::span<const int64_t> lengths,
                                  int64_t capacity);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_ROWPACKING_H
