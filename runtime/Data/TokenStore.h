// SPDX-License-Identifier: MIT

// The rows of a data file: ids and labels of each, read from the file whenever
// a micro-batch wants them, so that ranks share the page cache's. Which rows
// share a micro-batch is Schedule.h's.
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
// Either may have `desirable`, i32 [count, B] or [rows]: 1 where the answer of
// the row is one to come nearer to, 0 where one to get away from.
//
// Labels in files are those of their own token; what a micro-batch holds are
// targets, the label of the *next* token of the same segment. A row without
// segment_ids is one segment.
//
// A row is checked each time that it is read: a file that somebody cuts short
// or writes over while a run reads it is an error, never a wrong token.

#ifndef QLORA_RUNTIME_DATA_TOKENSTORE_H
#define QLORA_RUNTIME_DATA_TOKENSTORE_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/CompiledVariants.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

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
    return isWhole() ? rowLength : begin(row + 1) - begin(row);
  }
  /// Tokens of the row that are targets.
  int64_t labels(int64_t row) const {
    return labelCounts[static_cast<size_t>(row)];
  }
  /// Whether rows 2i and 2i + 1 are a chosen answer and a rejected one.
  bool hasPairs() const {
    const auto pairs = file.metadata().find("pairs");
    return pairs != file.metadata().end() && pairs->second == "true";
  }
  /// Whether the file says which tokens of a row attend to each other.
  bool hasSegments() const { return segments; }
  /// Whether rows say if their answer is desirable.
  bool isUnpaired() const { return !judgements.empty(); }
  /// Tokens from the first target to the end, of a row that has a judgement.
  int64_t answer(int64_t row) const {
    return answerLengths[static_cast<size_t>(row)];
  }
  /// Adds the rows, to the last token, as they were when it was opened.
  void identify(ContentHash &hash) const;

  /// Puts a row at `offset` of line `line`, as segment `segment` where the
  /// file has none; the caller knows that it fits. kDataLoss where the file is
  /// not what it was when it was opened.
  Status place(int64_t row, int64_t line, int64_t offset, int32_t segment,
               MicroBatch &out) const;

private:
  /// The tokens of some rows, one after the other.
  struct Tokens {
    std::vector<int32_t> ids, labels;
    std::vector<int32_t> positions; ///< empty: from the segments
    std::vector<int32_t> segments;  ///< empty: one for each row

    /// Whether token `t`, not the first of its row, goes on with the segment of
    /// the one before it.
    bool continues(size_t t) const {
      return segments.empty() || segments[t] == segments[t - 1];
    }
    bool isPadding(size_t t) const {
      return !segments.empty() && segments[t] == 0;
    }
    void identify(ContentHash &hash) const;
    /// Of the row in [begin, end).
    int64_t targets(size_t begin, size_t end) const;
    int64_t answer(size_t begin, size_t end) const;
    /// Of a token that is not the first of its row.
    bool isTarget(size_t t) const;
  };

  TokenStore(SafetensorsFile file, int64_t vocabSize)
      : file(std::move(file)), vocabSize(vocabSize) {}
  Status load(const CompiledVariants &variants);
  Status loadWhole(const std::vector<int64_t> &shape,
                   const CompiledVariants &variants);
  Status loadOffsets(const CompiledVariants &variants);
  Status loadJudgements();
  /// And takes the digest: the one time that all of a file is read.
  Status countLabels();
  /// Rows [first, last), checked.
  StatusOr<Tokens> read(int64_t first, int64_t last) const;
  StatusOr<std::vector<int32_t>> readPart(const SafetensorsTensor *tensor,
                                          int64_t first, int64_t last) const;
  Status checkRow(int64_t row, const Tokens &tokens, size_t begin) const;
  Status checkSegments(int64_t row, const Tokens &tokens, size_t begin) const;
  std::string placeName(int64_t row, int64_t position) const;
  int64_t begin(int64_t row) const {
    return isWhole() ? row * rowLength : offsets[static_cast<size_t>(row)];
  }
  StatusOr<const SafetensorsTensor *>
  integers(std::string_view name, const std::vector<int64_t> &shape) const;

  SafetensorsFile file;
  int64_t vocabSize;
  int64_t batch = 0, rowLength = 0; ///< of a token file, else 0
  const SafetensorsTensor *ids = nullptr, *labelIds = nullptr;
  const SafetensorsTensor *positions = nullptr, *segments = nullptr; ///< or not
  std::vector<int64_t> offsets;     ///< of a rows file
  std::vector<int64_t> labelCounts; ///< of each row
  std::vector<int32_t> judgements;  ///< of each row, or none
  std::vector<int64_t> answerLengths; ///< where there are judgements
  std::string digest;               ///< of all that rows have
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENSTORE_H
