// SPDX-License-Identifier: MIT

// Simulates ranks in one process, each with a shard of the vocabulary. On each
// rank, head_part computes softmax states of all rows. Then head_merge computes
// the rank's results from the states of all ranks.

#ifndef QLORA_TESTS_CONFORMANCE_HEADPARTSCASE_H
#define QLORA_TESTS_CONFORMANCE_HEADPARTSCASE_H

#include "tests/conformance/KernelCase.h"

namespace qlora::headparts {

inline constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
inline constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
inline constexpr qlora_dtype F16 = QLORA_DTYPE_F16;
inline constexpr qlora_dtype I32 = QLORA_DTYPE_I32;

/// Type or operand that receives the gradient of the hidden states.
enum class Into { kNone, kGradient, kF32, kBF16 };
enum class Labels { kSome, kNone, kFirstShard };

struct Split {
  int64_t shards, rows, hidden, vocab, piece, chunk, gap;
  qlora_dtype dtype, weight;
  Into into = Into::kF32;
  double cap = 0;
  int64_t lines = 1; ///< sequences per shard
  Labels labels = Labels::kSome;
  double smoothing = 0;
  bool hasOwnProbability = false;

  int64_t stateNumbers() const { return smoothing == 0 ? 4 : 5; }
  bool hasGradient() const { return into != Into::kNone; }
  bool hasDHidden() const { return into == Into::kF32 || into == Into::kBF16; }
  qlora_dtype dhidden() const { return into == Into::kBF16 ? BF16 : F32; }
  int64_t stride() const { return hidden + gap; }
  int64_t ofShard() const { return rows / shards; }
};

inline std::ostream &operator<<(std::ostream &out, const Split &s) {
  return out << s.shards << " of " << s.rows << "x" << s.hidden << "x"
             << s.vocab << " piece " << s.piece << " chunk " << s.chunk << " "
             << dtypeName(s.dtype) << "," << dtypeName(s.weight) << " into "
             << int(s.into) << " cap " << s.cap << " smoothing " << s.smoothing
             << " own " << s.hasOwnProbability;
}

/// Implementation names of head_part and head_merge.
struct Rows {
  const char *part, *merge;
  bool isShifted = false; ///< see KernelCase
};

inline std::vector<Rows> rowsOfParts() {
  std::vector<Rows> rows = {{"chunked", "rows"}, {"reference", "reference"}};
  if (CudaGpu::get())
    rows.push_back({"cuda", "cuda"});
  return rows;
}

/// If `isShared`, all ranks have the same rows, and each rank merges all rows.
inline KernelCase::Constants constantsOf(const Split &s, int64_t lines,
                                         bool isShared = false) {
  KernelCase::Constants constants = {
      {"rows", s.rows},        {"hidden_size", s.hidden},
      {"vocab", s.vocab},      {"piece", s.piece},
      {"shards", s.shards},    {"ldh", s.stride()},
      {"lddh", s.stride()},    {"cap", bits(s.cap)},
      {"chunk_rows", s.chunk}, {"lines", lines},
      {"replaced", 0},         {"own", isShared ? s.rows : s.ofShard()}};
  if (s.smoothing != 0 || s.hasOwnProbability)
    constants.insert({{"smoothing", bits(s.smoothing)},
                      {"own_probability", s.hasOwnProbability}});
  return constants;
}

/// Returns the unsharded problem: the full vocabulary on one rank.
inline KernelCase makeWhole(const Split &s) {
  KernelCase whole("head_loss_grad",
                   {{"hidden", s.dtype},
                    {"w", s.weight},
                    {"targets", I32},
                    {"loss", F32},
                    {"count", F32},
                    {"correct", I32},
                    {"dhidden", F32}},
                   constantsOf(s, s.shards * s.lines));
  whole.fill("hidden", s.rows, s.hidden, s.stride(), 1);
  whole.fill("w", s.vocab, s.hidden, s.hidden, 2);
  std::mt19937 generator(4);
  for (int64_t row = 0; row < s.rows; ++row) {
    const bool isSkipped =
        s.labels == Labels::kNone || row % 3 == 1 ||
        (s.labels == Labels::kFirstShard && row >= s.ofShard());
    whole.set("targets", row,
              isSkipped ? -100 : double(generator() % uint64_t(s.vocab)));
  }
  return whole;
}

inline qlora_step_block stepOf(int64_t shard, int64_t labelledRows = 1 << 30) {
  qlora_step_block step = {};
  step.shard = uint32_t(shard);
  step.labelled_rows = uint32_t(labelledRows);
  return step;
}

/// Copies the shard's rows of w. Fills rows after the vocabulary's end with 0.
inline void setPiece(const Split &s, int64_t shard, KernelCase &whole,
                     KernelCase &part) {
  for (int64_t word = 0; word < s.piece; ++word)
    for (int64_t i = 0; i < s.hidden; ++i) {
      const int64_t number = shard * s.piece + word;
      part.set("w", word * s.hidden + i,
               number < s.vocab ? whole.at("w", number * s.hidden + i) : 0);
    }
}

inline void copyRows(const char *operand, int64_t rows, int64_t columns,
                     int64_t ld, KernelCase &from, KernelCase &to) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < columns; ++i)
      to.set(operand, row * ld + i, from.at(operand, row * ld + i));
}

inline KernelCase makePart(const Split &s, int64_t shard, KernelCase &whole) {
  KernelCase::Types types = {
      {"hidden", s.dtype}, {"w", s.weight}, {"targets", I32}, {"states", F32}};
  if (s.hasGradient())
    types["gradient"] = F32;
  KernelCase part("head_part", types, constantsOf(s, s.lines));
  copyRows("hidden", s.rows, s.hidden, s.stride(), whole, part);
  copyRows("targets", 1, s.rows, s.rows, whole, part);
  setPiece(s, shard, whole, part);
  return part;
}

inline KernelCase makeMerge(const Split &s, int64_t shard, KernelCase &whole,
                            std::vector<KernelCase> &parts,
                            bool isShared = false) {
  KernelCase::Types types = {{"states", F32},
                             {"targets", I32},
                             {"loss", F32},
                             {"count", F32},
                             {"correct", I32}};
  if (s.hasGradient()) {
    types["gradient"] = F32;
    types["w"] = s.weight;
  }
  if (s.hasDHidden())
    types["dhidden"] = s.dhidden();
  const int64_t lines = isShared ? s.shards * s.lines : s.lines;
  KernelCase merge("head_merge", types, constantsOf(s, lines, isShared));
  copyRows("targets", 1, s.rows, s.rows, whole, merge);
  const int64_t ofPart = s.rows * s.stateNumbers();
  for (int64_t i = 0; i < s.shards * ofPart; ++i)
    merge.set("states", i, parts[size_t(i / ofPart)].at("states", i % ofPart));
  if (s.hasGradient()) {
    copyRows("gradient", s.rows, s.hidden, s.hidden, parts[size_t(shard)],
             merge);
    setPiece(s, shard, whole, merge);
  }
  return merge;
}

/// Returns the cases of head_part for all ranks; the caller runs them.
inline std::vector<KernelCase> makeParts(const Split &s, KernelCase &whole) {
  std::vector<KernelCase> parts;
  for (int64_t shard = 0; shard < s.shards; ++shard)
    parts.push_back(makePart(s, shard, whole));
  return parts;
}

/// Cases of head_part and of head_merge, one each per rank.
struct Ranks {
  std::vector<KernelCase> parts, merges;
};

inline Ranks runRanks(const Split &s, KernelCase &whole, Rows rows,
                      int64_t labelledRows = 1 << 30) {
  Ranks ranks = {makeParts(s, whole), {}};
  for (int64_t shard = 0; shard < s.shards; ++shard) {
    const qlora_step_block step = stepOf(shard, labelledRows);
    ranks.parts[size_t(shard)].isShifted = rows.isShifted;
    expectOk(ranks.parts[size_t(shard)].run(rows.part, nullptr, &step));
  }
  for (int64_t shard = 0; shard < s.shards; ++shard) {
    const qlora_step_block step = stepOf(shard, labelledRows);
    ranks.merges.push_back(makeMerge(s, shard, whole, ranks.parts));
    ranks.merges.back().isShifted = rows.isShifted;
    expectOk(ranks.merges.back().run(rows.merge, nullptr, &step));
  }
  return ranks;
}

} // namespace qlora::headparts

#endif // QLORA_TESTS_CONFORMANCE_HEADPARTSCASE_H
