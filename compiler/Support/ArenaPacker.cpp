// SPDX-License-Identifier: MIT

// Packs buffers into an arena: the orders that are tried, and the two ways of
// finding a gap. ArenaPacker.h describes the method.

#include "compiler/Support/ArenaPacker.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <set>

using namespace qlora;

namespace {

using Order = std::vector<uint32_t>;

/// Maximum rectangles that one packArena() visits in gap searches (0.3 s).
constexpr uint64_t kWorkBudget = 150'000'000;
/// Maximum repacks of improve().
constexpr int kMaxImprovements = 256;

uint64_t alignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

struct Packing {
  std::vector<uint64_t> offsets;
  uint64_t bytes = UINT64_MAX;
};

/// The unused ranges of an arena without an upper end, indexed by size and by
/// offset. `bySize` is sorted by (bytes, offset), so the first range that fits
/// is the tightest, and of equally tight ranges the lowest.
class FreeRanges {
public:
  FreeRanges() { insert(0, kEndless); }

  uint64_t allocate(uint64_t bytes, uint64_t alignment) {
    auto range = bySize.lower_bound({bytes, 0});
    while (alignUp(range->second, alignment) + bytes >
           range->second + range->first)
      ++range; // the endless range always fits
    auto [size, offset] = *range;
    uint64_t start = alignUp(offset, alignment);
    erase(offset, size);
    insert(offset, start - offset);
    insert(start + bytes, offset + size - start - bytes);
    return start;
  }

  void release(uint64_t offset, uint64_t bytes) {
    auto next = byOffset.lower_bound(offset);
    if (next != byOffset.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        bytes += previous->second;
        erase(previous->first, previous->second);
      }
    }
    next = byOffset.lower_bound(offset);
    if (next != byOffset.end() && offset + bytes == next->first) {
      uint64_t size = next->second;
      erase(next->first, size);
      bytes += size;
    }
    insert(offset, bytes);
  }

private:
  static constexpr uint64_t kEndless = uint64_t(1) << 62;

  void insert(uint64_t offset, uint64_t bytes) {
    if (!bytes)
      return;
    bySize.insert({bytes, offset});
    byOffset.emplace(offset, bytes);
  }
  void erase(uint64_t offset, uint64_t bytes) {
    bySize.erase({bytes, offset});
    byOffset.erase(offset);
  }

  std::set<std::pair<uint64_t, uint64_t>> bySize;
  std::map<uint64_t, uint64_t> byOffset;
};

class Packer {
public:
  Packer(std::span<const PackedBuffer> buffers, uint64_t enough);

  PackResult run();

private:
  /// Allocates in time order like malloc: buffers that have ended are freed.
  Packing packInTime(bool backwards) const;
  /// Places each buffer of `order` at the lowest offset where it overlaps no
  /// earlier one. Spends the work budget, and returns a packing with
  /// bytes == UINT64_MAX once the budget is used up.
  Packing packInOrder(const Order &order);
  Order sortedBy(double (*weight)(const PackedBuffer &)) const;
  void improve(Order order, Packing current);
  /// Keeps `packing` in `best` if it is the lowest so far. Returns true if
  /// `best` is low enough.
  bool keep(Packing packing);

  std::span<const PackedBuffer> buffers;
  Order occupied; ///< the buffers with bytes > 0
  uint64_t lowerBound = 0, enough = 0;
  uint64_t work = 0;
  Packing best;
};

} // namespace

/// Returns the most bytes alive at one command.
static uint64_t maxLiveBytes(std::span<const PackedBuffer> buffers,
                             const Order &occupied) {
  // Pairs (command, bytes). A buffer is alive at its last command, too.
  std::vector<std::pair<int64_t, uint64_t>> starts, ends;
  for (uint32_t i : occupied) {
    starts.push_back({buffers[i].first, buffers[i].bytes});
    ends.push_back({buffers[i].last, buffers[i].bytes});
  }
  std::sort(starts.begin(), starts.end());
  std::sort(ends.begin(), ends.end());
  uint64_t live = 0, most = 0;
  size_t ended = 0;
  for (auto [command, bytes] : starts) {
    while (ended < ends.size() && ends[ended].first < command)
      live -= ends[ended++].second;
    live += bytes;
    most = std::max(most, live);
  }
  return most;
}

Packer::Packer(std::span<const PackedBuffer> buffers, uint64_t enough)
    : buffers(buffers) {
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    assert(buffers[i].first <= buffers[i].last && "a life that ends first");
    assert(buffers[i].alignment &&
           !(buffers[i].alignment & (buffers[i].alignment - 1)) &&
           "an alignment that is no power of two");
    if (buffers[i].bytes)
      occupied.push_back(i);
  }
  lowerBound = maxLiveBytes(buffers, occupied);
  this->enough = std::max(enough, lowerBound);
}

bool Packer::keep(Packing packing) {
  if (packing.bytes < best.bytes)
    best = std::move(packing);
  return best.bytes <= enough;
}

Packing Packer::packInTime(bool backwards) const {
  auto first = [&](uint32_t i) {
    return backwards ? -buffers[i].last : buffers[i].first;
  };
  auto last = [&](uint32_t i) {
    return backwards ? -buffers[i].first : buffers[i].last;
  };
  Order starts = occupied, ends = occupied;
  // If buffers start together, place the longest-lived lowest. The space above
  // it then becomes contiguous again as early as possible.
  std::sort(starts.begin(), starts.end(), [&](uint32_t a, uint32_t b) {
    return std::tuple(first(a), -last(a), -int64_t(buffers[a].bytes), a) <
           std::tuple(first(b), -last(b), -int64_t(buffers[b].bytes), b);
  });
  std::sort(ends.begin(), ends.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(last(a), a) < std::pair(last(b), b);
  });
  Packing packing{std::vector<uint64_t>(buffers.size(), 0), 0};
  FreeRanges ranges;
  size_t ended = 0;
  for (uint32_t i : starts) {
    for (; last(ends[ended]) < first(i); ++ended)
      ranges.release(packing.offsets[ends[ended]], buffers[ends[ended]].bytes);
    packing.offsets[i] =
        ranges.allocate(buffers[i].bytes, buffers[i].alignment);
    packing.bytes =
        std::max(packing.bytes, packing.offsets[i] + buffers[i].bytes);
  }
  return packing;
}

Packing Packer::packInOrder(const Order &order) {
  struct Placed {
    uint64_t offset, end;
    int64_t first, last;
  };
  std::vector<Placed> placed; // sorted by offset
  placed.reserve(order.size());
  Packing packing{std::vector<uint64_t>(buffers.size(), 0), 0};
  for (uint32_t i : order) {
    const PackedBuffer &buffer = buffers[i];
    uint64_t offset = 0;
    size_t looked = 0;
    for (; looked < placed.size(); ++looked) {
      const Placed &other = placed[looked];
      if (other.first > buffer.last || other.last < buffer.first)
        continue;
      if (offset + buffer.bytes <= other.offset)
        break;
      offset = std::max(offset, alignUp(other.end, buffer.alignment));
    }
    work += looked;
    if (work > kWorkBudget)
      return Packing();
    packing.offsets[i] = offset;
    packing.bytes = std::max(packing.bytes, offset + buffer.bytes);
    auto place = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [](uint64_t value, const Placed &p) { return value < p.offset; });
    placed.insert(place, {offset, offset + buffer.bytes, buffer.first,
                          buffer.last});
  }
  return packing;
}

Order Packer::sortedBy(double (*weight)(const PackedBuffer &)) const {
  Order order = occupied;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return weight(buffers[a]) > weight(buffers[b]);
  });
  return order;
}

/// Moves the buffers that touch the top to the front of the order, because they
/// were placed so late that only the top was free. Then packs again. Repeats
/// this up to kMaxImprovements times, or until a packing is low enough.
void Packer::improve(Order order, Packing current) {
  for (int round = 0; round < kMaxImprovements; ++round) {
    if (current.bytes == UINT64_MAX)
      return;
    std::stable_partition(order.begin(), order.end(), [&](uint32_t i) {
      return current.offsets[i] + buffers[i].bytes == current.bytes;
    });
    current = packInOrder(order);
    if (keep(current))
      return;
  }
}

PackResult Packer::run() {
  if (occupied.empty())
    return {std::vector<uint64_t>(buffers.size(), 0), 0, 0};
  auto size = [](const PackedBuffer &b) { return double(b.bytes); };
  auto duration = [](const PackedBuffer &b) {
    return double(b.last - b.first + 1);
  };
  auto area = [](const PackedBuffer &b) {
    return double(b.last - b.first + 1) * double(b.bytes);
  };
  bool done = keep(packInTime(false)) || keep(packInTime(true));
  // Start the search only if it can finish one order. Each placement visits
  // about half of the placed buffers.
  uint64_t estimate = uint64_t(occupied.size()) * occupied.size() / 4;
  if (!done && estimate < kWorkBudget) {
    Order bestOrder;
    Packing bestPacking;
    for (auto weight : {+size, +area, +duration}) {
      Order order = sortedBy(weight);
      Packing packing = packInOrder(order);
      done = done || keep(packing);
      if (packing.bytes < bestPacking.bytes)
        bestOrder = order, bestPacking = packing;
    }
    if (!done)
      improve(std::move(bestOrder), std::move(bestPacking));
  }
  return {std::move(best.offsets), best.bytes, lowerBound};
}

PackResult qlora::packArena(std::span<const PackedBuffer> buffers,
                            uint64_t enough) {
  return Packer(buffers, enough).run();
}
