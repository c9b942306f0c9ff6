// SPDX-License-Identifier: MIT

// Assigns equal jobs to ranks of different speeds by earliest completion.

#include "runtime/Data/MicroBatchAssignment.h"

#include <set>
#include <utility>

namespace qlora {

MicroBatchAssignment::MicroBatchAssignment(int64_t count, int64_t ranks,
                                           std::span<const double> speeds)
    : ranks(ranks), each(count / ranks) {
  if (speeds.empty())
    return;
  numbers.resize(static_cast<size_t>(ranks));
  std::set<std::pair<double, size_t>> done; ///< finish time, rank
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    numbers[rank].push_back(static_cast<int64_t>(rank));
    done.insert({2 / speeds[rank], rank});
  }
  for (int64_t number = ranks; number < count; ++number) {
    const size_t rank = done.extract(done.begin()).value().second;
    numbers[rank].push_back(number);
    done.insert(
        {static_cast<double>(numbers[rank].size() + 1) / speeds[rank], rank});
  }
}

} // namespace qlora
