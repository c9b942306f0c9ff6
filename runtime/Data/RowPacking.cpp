// SPDX-License-Identifier: MIT

// First-fit packing with a tournament tree.

#include "runtime/Data/RowPacking.h"

#include <algorithm>
#include <cassert>

namespace qlora {

std::vector<int64_t> packFirstFit(std::span<const int64_t> lengths,
                                  int64_t capacity) {
  // A tournament tree over the free space of all possible bins; tree[1] is the
  // largest. The leftmost bin with enough space is found top down.
  size_t leaves = 1;
  while (leaves < lengths.size())
    leaves *= 2;
  std::vector<int64_t> tree(2 * leaves, capacity);
  std::vector<int64_t> bins;
  bins.reserve(lengths.size());
  for (int64_t length : lengths) {
    assert(length <= capacity);
    size_t node = 1;
    while (node < leaves)
      node = tree[2 * node] >= length ? 2 * node : 2 * node + 1;
    bins.push_back(static_cast<int64_t>(node - leaves));
    tree[node] -= length;
    while (node /= 2)
      tree[node] = std::max(tree[2 * node], tree[2 * node + 1]);
  }
  return bins;
}

} // namespace qlora
