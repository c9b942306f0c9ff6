// SPDX-License-Identifier: MIT

// The rows of a data file: ids and labels of each, read where the file is
// mapped. Which rows share a micro-batch is Schedule.h's.
//
// Two kinds of file, told apart by the tensors in them. A *token file* holds
// whole micro-batches:
//
//   input_ids, labels [, position_ids, segment_ids]   i32 [count, B, T]
//
// A *rows file*, which qlora-data makes from JSONL, holds rows of any length:
//
//   input_ids, labels   i32 [tokens]     row_offsets   i64 [rows + 1]
//
// Labels in files are those of their own token; what a micro-batch holds are
// targets, the label of the *next* token of the same segment. A row without
// segment_ids is one segment.

#ifndef QLORA_RUNTIME_DATA_TOKENSTORE_H
#define QLORA_RUNTIME_DATA_TOKENSTORE_H

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/CompiledVariants.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// Integers of a file, which need not be aligned there.
template <typename T> class MappedIntegers {
public:
  MappedIntegers() = default;
  explicit MappedIntegers(std::span<const uint8_t> bytes) : bytes(bytes) {}

  int64_t size() const {
    return static_cast<int64_t>(bytes.size() / sizeof(T));
  }
  bool isEmpty() const { return bytes.empty(); }
  T operator[](int64_t index) const {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T),
                sizeof(T));
    return value;
  }

private:
  std::span<const uint8_t> bytes;
};

/// Immutable after open().
class TokenStore {
public:
  /// Checks every token id, label and offset against what was compiled. Errors
  /// name the file, row and position.
  static StatusOr<TokenStore> open(const std::string &path,
                                   const CompiledVariants &variants);

  /// Whether it is a token file: its order and its padding are the user's.
  bool isWhole() const { return rowLength > 0; }
  int64_t rows() const { return static_cast<int64_t>(labelCounts.size()); }
  int64_t length(int64_t row) const {
    return isWhole() ? rowLength : offsets[row + 1] - offsets[row];
  }
  /// Tokens of the row that are targets.
  int64_t labels(int64_t row) const {
    return labelCounts[static_cast<size_t>(row)];
  }
  /// Adds the length and labels of all rows.
  void identify(ContentHash &hash) const;

  /// Puts a row at `offset` of line `line`, as segment `segment` where the
  /// file has none; the caller knows that it fits.
  void place(int64_t row, int64_t line, int64_t offset, int32_t segment,
             MicroBatch &out) const;

private:
  explicit TokenStore(SafetensorsFile file) : file(std::move(file)) {}
  Status load(const CompiledVariants &variants);
  Status loadWhole(const std::vector<int64_t> &shape,
                   const CompiledVariants &variants);
  Status loadOffsets();
  Status checkRow(int64_t row, const CompiledVariants &variants);
  std::string placeName(int64_t row, int64_t position) const;
  int64_t begin(int64_t row) const {
    return isWhole() ? row * rowLength : offsets[row];
  }
  StatusOr<MappedIntegers<int32_t>>
  integers(std::string_view name, const std::vector<int64_t> &shape) const;
  /// Whether token `at` goes on with the segment of the one before it.
  bool continues(int64_t at) const {
    return segments.isEmpty() || segments[at] == segments[at - 1];
  }

  SafetensorsFile file;
  int64_t batch = 0, rowLength = 0; ///< of a token file, else 0
  MappedIntegers<int32_t> ids, labelIds;
  MappedIntegers<int32_t> positions; ///< empty: from the segments
  MappedIntegers<int32_t> segments;  ///< empty: one for each row
  MappedIntegers<int64_t> offsets;   ///< of a rows file
  std::vector<int64_t> labelCounts;  ///< of each row
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENSTORE_H
