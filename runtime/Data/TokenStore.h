// SPDX-License-Identifier: MIT

// The rows of a data file, with token ids and labels. Rows are read from the
// file for each micro-batch; ranks share the page cache. Schedule.h determines
// which rows share a micro-batch.
//
// The tensors in a file determine its kind. A *token file* holds whole
// micro-batches:
//
//   input_ids, labels [, position_ids, segment_ids]   i32 [count, B, T]
//
// A *rows file*, which qlora-data makes from JSONL, holds rows of any length:
//
//   input_ids, labels   i32 [tokens]     row_offsets   i64 [rows + 1]
//
// Either may have `desirable`, i32 [count, B] or [rows]: 1 if the answer of the
// row is desirable, 0 if it is undesirable.
//
// open() reads only the header. Then either scan() reads and checks all rows
// and makes their index, or use() takes the index of another rank. Other
// functions need the index.
//
// Labels in files belong to their own token. Micro-batches have targets: the
// label of the *next* token of the same segment. A row without segment_ids is
// one segment.
//
// A row is checked each time it is read: a file that is truncated or
// overwritten during a run is an error, never a wrong token.

#ifndef QLORA_RUNTIME_DATA_TOKENSTORE_H
#define QLORA_RUNTIME_DATA_TOKENSTORE_H

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/Status.h"
#include "runtime/Data/RowIndex.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/CompiledVariants.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// Immutable once it has an index.
class TokenStore {
public:
  /// Opens a file and checks the shapes of its tensors. `name` is the file that
  /// it was made from, for errors.
  static StatusOr<TokenStore> open(const std::string &path,
                                   const std::string &name,
                                   const CompiledVariants &variants);
  /// Bytes of the index, a multiple of 8.
  uint64_t indexBytes() const { return index.bytes(); }
  /// Returns a text that is equal only for stores of one file with one index.
  std::string indexKey() const;
  /// Has the index at `offset` of memory, which is zeroed before scan().
  void setIndex(std::shared_ptr<const HostMemory> memory, uint64_t offset) {
    index.place(std::move(memory), offset);
  }
  /// Reads all rows and fills the index. Checks every token id, label and
  /// offset against the compiled sizes; errors name the file, row and position.
  /// Calls `often`, which can end the work.
  Status scan(const std::function<Status()> &often);

  /// Whether this is a token file, whose order and padding are used unchanged.
  bool isWhole() const { return index.isWhole(); }
  int64_t rows() const { return index.rows(); }
  int64_t length(int64_t row) const { return index.length(row); }
  /// Tokens of the row that are targets.
  int64_t labels(int64_t row) const { return index.labels(row); }
  /// Whether rows 2i and 2i + 1 are a chosen answer and a rejected one.
  bool hasPairs() const {
    const auto pairs = file.metadata().find("pairs");
    return pairs != file.metadata().end() && pairs->second == "true";
  }
  /// Whether the file has segment_ids, which limit attention inside a row.
  bool hasSegments() const { return segments; }
  /// Whether each row's answer is marked as desirable or undesirable.
  bool isUnpaired() const { return index.isJudged(); }
  /// Tokens from the first target to the end of the row; needs isUnpaired().
  int64_t answer(int64_t row) const { return index.answer(row); }
  /// Adds the tokens and labels of all rows, as of scan(), to `hash`.
  void identify(ContentHash &hash) const;

  /// Copies a row to `offset` of sequence `line`, where it must fit. `segment`
  /// is used if the file has no segments. kDataLoss: the file has changed.
  Status place(int64_t row, int64_t line, int64_t offset, int32_t segment,
               MicroBatch &out) const;

private:
  /// The tokens of consecutive rows.
  struct Tokens {
    std::vector<int32_t> ids, labels;
    std::vector<int32_t> positions; ///< empty: computed from the segments
    std::vector<int32_t> segments;  ///< empty: one segment per row

    /// Whether tokens `t` and `t` - 1 are in the same segment. `t` must not be
    /// the first token of its row.
    bool continues(size_t t) const {
      return segments.empty() || segments[t] == segments[t - 1];
    }
    bool isPadding(size_t t) const {
      return !segments.empty() && segments[t] == 0;
    }
    void identify(ContentHash &hash) const;
    /// Count the labels, and the answer's tokens, of row [begin, end).
    int64_t targets(size_t begin, size_t end) const;
    int64_t answer(size_t begin, size_t end) const;
    /// Whether the label of token `t` counts in the loss. `t` must not be the
    /// first token of its row.
    bool isTarget(size_t t) const;
  };

  TokenStore(SafetensorsFile file, std::string name, int64_t vocabSize)
      : file(std::move(file)), name(std::move(name)), vocabSize(vocabSize) {}
  Status load(const CompiledVariants &variants);
  Status checkWhole(const std::vector<int64_t> &shape,
                    const CompiledVariants &variants);
  Status checkOffsets();
  using Often = std::function<Status()>;
  Status scanOffsets(const Often &often);
  Status scanJudgements(const Often &often);
  /// Counts the labels of each row and computes the digest.
  Status scanTokens(const Often &often);
  Status named(const Status &status) const;
  /// Reads and checks rows [first, last).
  StatusOr<Tokens> read(int64_t first, int64_t last) const;
  StatusOr<std::vector<int32_t>> readPart(const SafetensorsTensor *tensor,
                                          int64_t begin, int64_t count) const;
  Status checkRow(int64_t row, const Tokens &tokens, size_t begin) const;
  Status checkSegments(int64_t row, const Tokens &tokens, size_t begin) const;
  std::string placeName(int64_t row, int64_t position) const;
  StatusOr<const SafetensorsTensor *>
  integers(std::string_view name, const std::vector<int64_t> &shape) const;

  SafetensorsFile file;
  std::string name; ///< the user's file
  int64_t vocabSize;
  int64_t batch = 0; ///< sequences per micro-batch of a token file, else 0
  const SafetensorsTensor *ids = nullptr, *labelIds = nullptr;
  /// Tensors of the file, or null if it lacks them.
  const SafetensorsTensor *positions = nullptr, *segments = nullptr;
  const SafetensorsTensor *offsets = nullptr, *judgements = nullptr;
  RowIndex index;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_TOKENSTORE_H
