// SPDX-License-Identifier: MIT

// Assigns the micro-batches of a step to ranks. Ranks of equal speed take
// turns: the k-th micro-batch of rank r of N is number k N + r. If speeds
// differ, each rank gets one micro-batch, and then each further one goes to the
// rank that would finish it first:
//
//   speeds 3 and 1, 8 micro-batches    rank 0: 0 2 3 4 5 6    rank 1: 1 7
//
// The number of a micro-batch determines its rows and dropout masks, so the
// assignment affects only the order of sums.

#ifndef QLORA_RUNTIME_DATA_MICROBATCHASSIGNMENT_H
#define QLORA_RUNTIME_DATA_MICROBATCHASSIGNMENT_H

#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

/// Immutable.
class MicroBatchAssignment {
public:
  /// `count` must be a multiple of `ranks`. `speeds`: relative speed of each
  /// rank, above 0; empty if all are equal.
  MicroBatchAssignment(int64_t count, int64_t ranks,
                       std::span<const double> speeds);

  /// Micro-batches of a rank; at least 1.
  int64_t size(int64_t rank) const {
    return numbers.empty() ? each
                           : static_cast<int64_t>(
                                 numbers[static_cast<size_t>(rank)].size());
  }
  /// Returns the number of a rank's k-th micro-batch, ascending in k.
  int64_t number(int64_t rank, int64_t k) const {
    return numbers.empty()
               ? k * ranks + rank
               : numbers[static_cast<size_t>(rank)][static_cast<size_t>(k)];
  }

private:
  int64_t ranks, each;
  /// Micro-batch numbers of each rank; empty for equal speeds.
  std::vector<std::vector<int64_t>> numbers;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_MICROBATCHASSIGNMENT_H
