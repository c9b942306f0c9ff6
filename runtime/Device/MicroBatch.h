// SPDX-License-Identifier: MIT

// The inputs of one run of an entry.

#ifndef QLORA_RUNTIME_DEVICE_MICROBATCH_H
#define QLORA_RUNTIME_DEVICE_MICROBATCH_H

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

namespace qlora {

/// A target without loss.
inline constexpr int32_t kNoLabel = -100;

/// Rows of a micro-batch and tokens of each: what chooses a variant.
struct BatchShape {
  int64_t batch = 0;
  int64_t length = 0;
  auto operator<=>(const BatchShape &) const = default;
};

/// The inputs of one run of an entry, [batch, length] each, row-major.
struct MicroBatch {
  int64_t batch = 0;
  int64_t length = 0;
  std::vector<int32_t> ids;
  std::vector<int32_t> targets;
  std::vector<int32_t> positions; ///< inside the segment, from 0
  std::vector<int32_t> segments;  ///< 0: padding
  /// [batch]: 1 where the answer of a line is desirable, if data say so.
  std::vector<float> desirable;
  /// The last lines, which have mismatched answers (Data/MismatchedAnswers.h).
  int64_t mismatchedLines = 0;

  /// Makes it all padding.
  void clear(const BatchShape &shape) {
    batch = shape.batch;
    length = shape.length;
    const size_t tokens = static_cast<size_t>(batch * length);
    ids.assign(tokens, 0);
    targets.assign(tokens, kNoLabel);
    positions.assign(tokens, 0);
    segments.assign(tokens, 0);
    desirable.assign(static_cast<size_t>(batch), 0);
    mismatchedLines = 0;
  }
  /// Tokens of the longest row, which is a segment; at least 1.
  int64_t longestRow() const {
    int64_t longest = 1, run = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      const bool goesOn = i % static_cast<size_t>(length) != 0 &&
                          segments[i] == segments[i - 1];
      run = segments[i] == 0 ? 0 : goesOn ? run + 1 : 1;
      longest = std::max(longest, run);
    }
    return longest;
  }
  int64_t labelCount() const {
    return static_cast<int64_t>(targets.size()) -
           std::ranges::count(targets, kNoLabel);
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_MICROBATCH_H
