// SPDX-License-Identifier: MIT

// The inputs of one run of an entry, and the cp shard of each sequence.

#ifndef QLORA_RUNTIME_DEVICE_MICROBATCH_H
#define QLORA_RUNTIME_DEVICE_MICROBATCH_H

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

namespace qlora {

/// A target that is not in the loss.
inline constexpr int32_t kNoLabel = -100;

/// The number of sequences of a micro-batch and the tokens per sequence, which
/// select a variant of the program.
struct BatchShape {
  int64_t batch = 0;
  int64_t length = 0;
  auto operator<=>(const BatchShape &) const = default;
};

/// The inputs of one run of an entry, each [batch, length] and row-major.
struct MicroBatch {
  int64_t batch = 0;
  int64_t length = 0;
  std::vector<int32_t> ids;
  std::vector<int32_t> targets;
  std::vector<int32_t> positions; ///< inside the segment, from 0
  std::vector<int32_t> segments;  ///< 0: padding
  /// Whether, in every micro-batch of every rank, each sequence is one segment
  /// followed by padding. Then causal attention can ignore segments.
  bool hasOneSegment = false;
  /// [batch]: 1 if a sequence's answer is desirable, for data with such labels.
  std::vector<float> desirable;
  /// Number of sequences with a mismatched answer (KtoKlPairs.h). They come
  /// after all other sequences.
  int64_t mismatchedLines = 0;

  /// Resizes to `shape` and makes every token padding.
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
    hasOneSegment = false;
  }
  /// Returns the number of tokens of the longest segment; at least 1.
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
  /// Returns for each token [batch, length] the length of its segment in
  /// tokens: its largest position + 1. 0 for padding.
  std::vector<int32_t> segmentLengths() const {
    std::vector<int32_t> lengths(segments.size());
    for (size_t first = 0, end; first < segments.size(); first = end) {
      const size_t line = first / static_cast<size_t>(length) + 1;
      int32_t longest = 0;
      for (end = first; end < line * static_cast<size_t>(length) &&
                        segments[end] == segments[first];
           ++end)
        longest = std::max(longest, positions[end] + 1);
      std::fill(lengths.begin() + static_cast<std::ptrdiff_t>(first),
                lengths.begin() + static_cast<std::ptrdiff_t>(end),
                segments[first] == 0 ? 0 : longest);
    }
    return lengths;
  }
  int64_t labelCount() const {
    return static_cast<int64_t>(targets.size()) -
           std::ranges::count(targets, kNoLabel);
  }
};

/// A rank's cp shard of each sequence: its index and the number of shards.
struct SequenceShard {
  int64_t number = 0, count = 1;

  /// Returns the shard's values of `whole`, which has `length` per sequence.
  std::vector<int32_t> cut(const std::vector<int32_t> &whole,
                           int64_t length) const {
    std::vector<int32_t> part;
    part.reserve(whole.size() / static_cast<size_t>(count));
    const int64_t own = length / count;
    for (int64_t at = number * own; at < std::ssize(whole); at += length)
      part.insert(part.end(), whole.begin() + at, whole.begin() + at + own);
    return part;
  }
  /// Inverse of cut(): puts a shard's values at their places in sequences of
  /// `length` values; all other values are 0.
  std::vector<int32_t> place(const std::vector<int32_t> &part,
                             int64_t length) const {
    std::vector<int32_t> whole(part.size() * static_cast<size_t>(count));
    for (size_t i = 0; i < part.size(); ++i)
      whole[static_cast<size_t>(placeOf(static_cast<int64_t>(i), length))] =
          part[i];
    return whole;
  }
  /// Returns the index in the full sequences of the shard's i-th value.
  int64_t placeOf(int64_t i, int64_t length) const {
    const int64_t own = length / count;
    return i / own * length + number * own + i % own;
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_MICROBATCH_H
