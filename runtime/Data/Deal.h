// SPDX-License-Identifier: MIT

// Which rank runs which micro-batches of a step. Ranks of one speed take turns,
// the k-th of rank r of N being number k N + r. Where some are faster, each
// micro-batch goes to the rank that is done with it first, after each has one:
//
//   speeds 3 and 1, 8 micro-batches    rank 0: 0 2 3 4 5 6    rank 1: 1 7
//
// Numbers are what a micro-batch is (rows, dropout masks), so that who runs it
// changes nothing but the order of the sums.

#ifndef QLORA_RUNTIME_DATA_DEAL_H
#define QLORA_RUNTIME_DATA_DEAL_H

#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

/// Immutable.
class Deal {
public:
  /// `count`, a multiple of `ranks`; `speeds`: of each rank beside the others,
  /// above 0, or none where all are equal.
  Deal(int64_t count, int64_t ranks, std::span<const double> speeds);

  /// How many a rank has; at least 1.
  int64_t size(int64_t rank) const {
    return numbers.empty() ? each
                           : static_cast<int64_t>(
                                 numbers[static_cast<size_t>(rank)].size());
  }
  /// The number of the k-th of a rank, ascending in k.
  int64_t number(int64_t rank, int64_t k) const {
    return numbers.empty()
               ? k * ranks + rank
               : numbers[static_cast<size_t>(rank)][static_cast<size_t>(k)];
  }

private:
  int64_t ranks, each;
  std::vector<std::vector<int64_t>> numbers; ///< by rank; none: all are equal
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_DEAL_H
