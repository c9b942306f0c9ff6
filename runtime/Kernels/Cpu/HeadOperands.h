// SPDX-License-Identifier: MIT

// The operands of the LM head's ops by name, and the check of their data.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADOPERANDS_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADOPERANDS_H

#include <compare>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora {

/// The target of a row without a label.
inline constexpr int32_t kNoTarget = -100;

struct HeadShape {
  int64_t rows, hidden, vocab, ldh, lddh, lines;
  float cap;
  qlora_dtype hiddenType, weightType, dhiddenType, columnsType;
  int64_t replaced; ///< number of replaced logits per row

  static HeadShape of(const KernelRequest &request);
  /// Returns the index of the element of `loss` that a row adds to.
  int64_t lineOf(int64_t row) const { return row / (rows / lines); }
};

/// Logits that replace the computed logits of some token ids (`columns`).
struct ReplacedLogits {
  struct Word {
    int64_t number, column;
    auto operator<=>(const Word &) const = default;
  };
  const void *columns = nullptr; ///< [rows, words.size()]
  qlora_dtype type = QLORA_DTYPE_F32;
  std::vector<Word> words; ///< ascending

  /// Returns the token ids in [first, first + count).
  std::span<const Word> in(int64_t first, int64_t count) const;
  float at(int64_t row, Word word) const;
};

/// The vocabulary shard in `w`: the first `words` rows belong to the token ids
/// [first, first + words) of `vocab`. The other rows of w are padding.
struct HeadPiece {
  int64_t first, words, vocab;

  /// Returns the shard with index step.shard, this rank's.
  static HeadPiece of(const qlora_step_block &step, int64_t piece,
                      int64_t vocab);
  bool has(int64_t word) const { return word >= first && word < first + words; }
};

/// The operands that determine the logits.
struct HeadInputs {
  const void *hidden, *w;
  const int32_t *targets; ///< token ids, not relative to the shard
  HeadPiece piece;
  ReplacedLogits replaced = {};
};

/// Sums the rows of w except the replaced token ids to `sums`, f32 [kHeadTasks,
/// hidden], whose first row becomes the sum. The bits do not depend on threads.
void sumWords(const HeadInputs &inputs, qlora_dtype weightType, int64_t hidden,
              float *sums);

/// Checks that every target is a token id or kNoTarget; else returns an
/// internal error that names the op and the row.
Status checkTargets(std::string_view op, std::span<const int32_t> targets,
                    int64_t vocab);

/// Buffers by name; null if the op or the launch lacks a buffer.
struct HeadOperands : HeadInputs {
  float *loss, *count;
  int32_t *correct;
  void *dhidden = nullptr;
  float *dw = nullptr;
  void *dcolumns = nullptr;

  /// Returns kInternal, naming the row or the id, if a target or a replaced
  /// token id is outside the vocabulary. Earlier checks should prevent this.
  static StatusOr<HeadOperands> of(const LibraryKernelArgs &args,
                                   const HeadShape &shape, bool hasGradient);
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADOPERANDS_H
