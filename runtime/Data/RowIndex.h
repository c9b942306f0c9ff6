// SPDX-License-Identifier: MIT

// Positions and counts of all rows of a data file, which a run needs without
// reading the rows: 3.4 bytes per row if rows have at most 4,096 tokens.
//
// An index is a block of memory without pointers, so ranks can share it:
//
//   digest     32 characters, a hash of all rows
//   starts     i64: first token of every 64th row; only in rows files
//   lengths    tokens; only in rows files
//   labels     tokens that are targets
//   answers    2 x tokens of the answer + whether it is desirable; only in
//              files with judgements
//
// The last three are packed numbers, with just enough bits for the longest row.

#ifndef QLORA_RUNTIME_DATA_ROWINDEX_H
#define QLORA_RUNTIME_DATA_ROWINDEX_H

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/HostMemory.h"

namespace qlora {

/// Unsigned numbers of 1 to 57 bits each, without gaps, in a part of memory.
struct PackedNumbers {
  uint8_t *bytes = nullptr; ///< 8 bytes longer than the numbers
  unsigned bits = 0;        ///< per number; 0: there are no numbers

  int64_t operator[](int64_t i) const {
    const uint64_t word = load(i) >> shift(i);
    return static_cast<int64_t>(word & ((uint64_t{1} << bits) - 1));
  }
  /// Adds to a number, which is 0 at first. The sum must fit.
  void add(int64_t i, int64_t value) {
    const uint64_t word = load(i) + (static_cast<uint64_t>(value) << shift(i));
    std::memcpy(at(i), &word, sizeof word);
  }

private:
  uint64_t bit(int64_t i) const { return static_cast<uint64_t>(i) * bits; }
  unsigned shift(int64_t i) const { return bit(i) % 8; }
  uint8_t *at(int64_t i) const { return bytes + bit(i) / 8; }
  uint64_t load(int64_t i) const {
    uint64_t word;
    std::memcpy(&word, at(i), sizeof word);
    return word;
  }
};

/// Movable. Rows must be added in order; afterwards the index is immutable.
class RowIndex {
public:
  struct Shape {
    int64_t rows = 0;
    int64_t longest = 0;   ///< maximum tokens of a row
    bool isWhole = false;  ///< a token file: each row has `longest` tokens
    bool isJudged = false; ///< rows have answers
  };

  RowIndex() = default;
  explicit RowIndex(const Shape &shape) : shape(shape) { layOut(); }

  int64_t rows() const { return shape.rows; }
  int64_t longest() const { return shape.longest; }
  bool isWhole() const { return shape.isWhole; }
  bool isJudged() const { return shape.isJudged; }
  /// Bytes of the index, a multiple of 8.
  uint64_t bytes() const { return size; }
  /// Uses bytes() of `memory` from `offset` on: zeros, or a filled index.
  void place(std::shared_ptr<const HostMemory> memory, uint64_t offset);

  int64_t begin(int64_t row) const;
  int64_t length(int64_t row) const {
    return shape.isWhole ? shape.longest : lengths[row];
  }
  int64_t labels(int64_t row) const { return labelCounts[row]; }
  int64_t answer(int64_t row) const { return answers[row] / 2; }
  bool isDesirable(int64_t row) const { return answers[row] % 2 != 0; }
  std::string_view digest() const {
    return {reinterpret_cast<const char *>(start), ContentHash::kDigits};
  }

  void addLength(int64_t row, int64_t begin, int64_t length);
  void addLabels(int64_t row, int64_t count) { labelCounts.add(row, count); }
  void addJudgement(int64_t row, bool isDesirable) {
    answers.add(row, isDesirable);
  }
  void addAnswer(int64_t row, int64_t tokens) { answers.add(row, 2 * tokens); }
  void setDigest(std::string_view digest);

private:
  static constexpr int64_t kRowsPerStart = 64;

  void layOut();
  /// Offset of the value that begin() counts from.
  static uint64_t startOf(int64_t row) {
    return ContentHash::kDigits +
           static_cast<uint64_t>(row / kRowsPerStart) * sizeof(int64_t);
  }

  Shape shape;
  uint64_t size = 0;
  std::shared_ptr<const HostMemory> memory;
  uint8_t *start = nullptr; ///< null before place()
  PackedNumbers lengths, labelCounts, answers;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_ROWINDEX_H
