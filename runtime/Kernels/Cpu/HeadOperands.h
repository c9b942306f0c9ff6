// SPDX-License-Identifier: MIT

// The operands of the head's ops by name, and the check of what is data in
// them.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADOPERANDS_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADOPERANDS_H

#include <compare>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora {

/// A row without a label.
inline constexpr int32_t kNoTarget = -100;

struct HeadShape {
  int64_t rows, hidden, vocab, ldh, lddh, lines;
  float cap;
  qlora_dtype hiddenType, weightType, dhiddenType, columnsType;
  int64_t replaced; ///< logits of a row that are given

  static HeadShape of(const KernelRequest &request);
  /// Which sum a row is in.
  int64_t lineOf(int64_t row) const { return row / (rows / lines); }
};

/// Logits that are given, in the place of products with words.
struct ReplacedLogits {
  struct Word {
    int64_t number, column;
    auto operator<=>(const Word &) const = default;
  };
  const void *columns = nullptr; ///< [rows, words.size()]
  qlora_dtype type = QLORA_DTYPE_F32;
  std::vector<Word> words; ///< in ascending order

  /// Words of [first, first + count).
  std::span<const Word> in(int64_t first, int64_t count) const;
  float at(int64_t row, Word word) const;
};

/// What `w` has of the vocabulary: of `vocab` words those from `first` on, its
/// first `words` rows. Rows of w behind them stand for no words.
struct HeadPiece {
  int64_t first, words, vocab;

  /// That of the step's shard, of head_part and head_merge.
  static HeadPiece of(const qlora_step_block &step, int64_t piece,
                      int64_t vocab);
  bool has(int64_t word) const {
    return word >= first && word < first + words;
  }
};

/// What logits are made of.
struct HeadInputs {
  const void *hidden, *w;
  const int32_t *targets; ///< words of the whole vocabulary
  HeadPiece piece;
  ReplacedLogits replaced = {};
};

/// Every row has a word of the vocabulary as its target, or none; else an
/// internal error that names the op and the row.
Status checkTargets(std::string_view op, std::span<const int32_t> targets,
                    int64_t vocab);

/// Buffers by name; null where the op or the launch has none.
struct HeadOperands : HeadInputs {
  float *loss, *count;
  int32_t *correct;
  void *dhidden = nullptr;
  float *dw = nullptr;
  void *dcolumns = nullptr;

  /// Data was checked before; so a target outside of the vocabulary is an
  /// internal error that names the row, as is a word that is none.
  static StatusOr<HeadOperands> of(const LibraryKernelArgs &args,
                                   const HeadShape &shape, bool hasGradient);
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADOPERANDS_H
