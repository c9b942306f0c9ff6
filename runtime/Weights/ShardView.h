// SPDX-License-Identifier: MIT

// Describes the bytes of a complete tensor that one rank gets: a contiguous
// fsdp shard, or the gathered ranges of a tp or ep shard. Any range of the
// shard can be copied, so it is sent in windows and never exists as a whole.
//
// A shard is a list of sections with zeros between them. A section has rows,
// and each row has the same runs (byte ranges) of a row of the complete tensor:
//
//   whole  row 0  ..AAA...BB.      section  AAABB
//          row 1  ..CCC...DD.               CCCDD

#ifndef QLORA_RUNTIME_WEIGHTS_SHARDVIEW_H
#define QLORA_RUNTIME_WEIGHTS_SHARDVIEW_H

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace qlora {

/// A byte range in a row of the complete tensor.
struct ShardRange {
  uint64_t from, bytes;
};

/// A shard of a tensor. Movable; may own bytes of its sections.
class ShardView {
public:
  ShardView() = default;
  ShardView(ShardView &&) = default;
  ShardView &operator=(ShardView &&) = default;

  /// Adds a section at byte `at` of the shard: `count` rows that start at
  /// `whole`, `step` bytes apart. `whole` must outlive this object. Does
  /// nothing if `runs` is empty.
  void addRows(uint64_t at, const uint8_t *whole, uint64_t step, uint64_t count,
               std::vector<ShardRange> runs);
  /// Adds a section at byte `at` whose bytes this object owns.
  void addOwn(uint64_t at, std::vector<uint8_t> bytes) {
    own = std::move(bytes);
    addRows(at, own.data(), 0, 1, {{0, own.size()}});
  }

  /// Copies bytes of the shard from `at` on to `out`, which must be zero.
  void copy(uint64_t at, std::span<uint8_t> out) const;

private:
  struct Section {
    uint64_t begin, bytes, row; ///< bytes in the shard; `row`: bytes of a row
    const uint8_t *whole;
    uint64_t step;
    std::vector<ShardRange> runs;

    void copy(uint64_t at, std::span<uint8_t> out) const;
  };
  std::vector<Section> sections;
  std::vector<uint8_t> own;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_SHARDVIEW_H
