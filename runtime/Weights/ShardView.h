// SPDX-License-Identifier: MIT

// Describes one rank's shard of a complete tensor: contiguous bytes (fsdp), or
// gathered ranges (tp, ep). Any range of the shard can be copied, so a shard is
// sent in windows and never needs memory as a whole.
//
// A shard is a list of sections with zeros between them. A section has rows.
// Each row consists of runs (byte ranges) of a row of the complete tensor, at
// the same positions in all rows. Each letter or dot is a byte:
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

/// A shard of a tensor. Movable. Refers to the tensor's bytes.
class ShardView {
public:
  ShardView() = default;
  ShardView(ShardView &&) = default;
  ShardView &operator=(ShardView &&) = default;

  /// Adds a section at byte `at` of the shard, with `runs` of `count` rows. The
  /// tensor's rows begin at `whole`, `step` bytes apart; `whole` must outlive
  /// this object. Does nothing if `runs` is empty.
  void addRows(uint64_t at, const uint8_t *whole, uint64_t step, uint64_t count,
               std::vector<ShardRange> runs);
  /// Adds a section at byte `at` that has `bytes`, which this object then owns.
  void addOwn(uint64_t at, std::vector<uint8_t> bytes) {
    own = std::move(bytes);
    addRows(at, own.data(), 0, 1, {{0, own.size()}});
  }

  /// Copies bytes of the shard from `at` on to `out`, which must be zeroed.
  void copy(uint64_t at, std::span<uint8_t> out) const;

private:
  struct Section {
    uint64_t begin, bytes, row; ///< begin: in the shard; row: bytes of a row
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
