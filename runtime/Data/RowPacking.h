// SPDX-License-Identifier: MIT

// Implements --packing, which puts several rows into one sequence.

#ifndef QLORA_RUNTIME_DATA_ROWPACKING_H
#define QLORA_RUNTIME_DATA_ROWPACKING_H

#include <cstdint>
#include <functional>
#include <vector>

namespace qlora {

/// Rows in bins. The rows of a bin form a circle, so that 4 bytes per row hold
/// all bins. Bins are numbered in order of their first rows.
struct PackedRows {
  /// For each row, the preceding row of its bin; for the first, the last row.
  std::vector<uint32_t> before;
  std::vector<uint32_t> firsts; ///< first row of each bin
};

/// First-fit packing in order: the lengths in a bin add up to at most
/// `capacity`. `lengthOf(row)` returns at most `capacity`.
PackedRows packFirstFit(int64_t rows, int64_t capacity,
                        const std::function<int64_t(int64_t)> &lengthOf);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_ROWPACKING_H
