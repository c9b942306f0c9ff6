// SPDX-License-Identifier: MIT

// First-fit packing with a tournament tree.

#include "runtime/Data/RowPacking.h"

#include <algorithm>
#include <cassert>

namespace qlora {

namespace {
/// The free space of bins. Full blocks of bins are skipped with a tournament
/// tree over the largest space in each block; tree[1] is the largest of all.
class FreeSpace {
public:
  FreeSpace(int64_t bins, int64_t capacity) : capacity(capacity) {
    while (leaves * kBlock < static_cast<size_t>(bins))
      leaves *= 2;
    tree.assign(2 * leaves, capacity);
    // Growing would copy. Memory that is not used takes no space.
    space.reserve(static_cast<size_t>(bins));
  }

  /// Takes `length` from the leftmost bin that has it, and returns that bin.
  size_t take(int64_t length) {
    assert(length <= capacity);
    size_t node = 1;
    while (node < leaves)
      node = tree[2 * node] >= length ? 2 * node : 2 * node + 1;
    const size_t block = (node - leaves) * kBlock;
    size_t bin = block;
    while (bin < space.size() && space[bin] < length)
      ++bin;
    if (bin == space.size())
      space.push_back(static_cast<uint32_t>(capacity));
    space[bin] -= static_cast<uint32_t>(length);
    // Bins that are not opened yet are empty.
    if (const size_t end = block + kBlock; space.size() >= end)
      tree[node] = *std::max_element(space.data() + block, space.data() + end);
    while (node /= 2)
      tree[node] = std::max(tree[2 * node], tree[2 * node + 1]);
    return bin;
  }

private:
  static constexpr size_t kBlock = 128;

  const int64_t capacity;
  size_t leaves = 1;
  std::vector<int64_t> tree;
  std::vector<uint32_t> space; ///< of each opened bin
};
} // namespace

PackedRows packFirstFit(int64_t rows, int64_t capacity,
                        const std::function<int64_t(int64_t)> &lengthOf) {
  FreeSpace space(rows, capacity);
  PackedRows packed;
  packed.before.resize(static_cast<size_t>(rows));
  packed.firsts.reserve(packed.before.size());
  for (uint32_t row = 0; row < packed.before.size(); ++row) {
    const size_t bin = space.take(lengthOf(row));
    if (bin == packed.firsts.size())
      packed.firsts.push_back(row);
    uint32_t &last = packed.before[packed.firsts[bin]];
    packed.before[row] = packed.firsts[bin] == row ? row : last;
    last = row;
  }
  return packed;
}

} // namespace qlora
