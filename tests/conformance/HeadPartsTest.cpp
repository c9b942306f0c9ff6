// SPDX-License-Identifier: MIT

// head_part and head_merge: compares the states and results of ranks with those
// of the reference. For results, this is head_loss_grad on the full vocabulary.

#include <algorithm>

#include "tests/conformance/HeadPartsCase.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {
namespace {

using namespace headparts;

/// Checks the softmax states that ranks exchange.
void checkStates(const Split &s, Ranks &expected, Ranks &got) {
  const int64_t numbers = s.stateNumbers();
  for (size_t shard = 0; shard < got.parts.size(); ++shard)
    for (int64_t i = 0; i < s.rows * numbers; ++i) {
      const double exact = expected.parts[shard].at("states", i);
      const double state = got.parts[shard].at("states", i);
      if (i % numbers == 3 || std::isinf(exact)) {
        ASSERT_EQ(state, exact) << shard << " " << i;
        continue;
      }
      // The relative error of a sum of exponentials is that of its largest
      // term.
      ASSERT_NEAR(state, exact,
                  tolerance(F32, exact, s.hidden * 2,
                            i % numbers == 1   ? 1 + exact
                            : i % numbers == 4 ? std::sqrt(double(s.piece))
                                               : 1))
          << shard << " " << i;
    }
}

void checkLosses(const Split &s, KernelCase &whole, Ranks &ranks) {
  for (int64_t shard = 0; shard < s.shards; ++shard) {
    KernelCase &merge = ranks.merges[size_t(shard)];
    for (int64_t line = 0; line < s.lines; ++line) {
      const int64_t at = shard * s.lines + line;
      EXPECT_EQ(merge.at("count", line), whole.at("count", at));
      // Ranks exchange sums of exponentials, maxima and target logits as f32.
      const double exact = whole.at("loss", at);
      EXPECT_NEAR(merge.at("loss", line), exact,
                  tolerance(F32, exact, s.hidden * s.ofShard()));
    }
    for (int64_t row = 0; row < s.ofShard(); ++row)
      ASSERT_EQ(merge.at("correct", row),
                whole.at("correct", shard * s.ofShard() + row))
          << shard << " " << row;
  }
}

/// Checks the sum of the ranks' gradients. Each rank rounds its summand.
void checkGradients(const Split &s, KernelCase &whole, Ranks &ranks) {
  const bool isBF16 = s.dtype == BF16 && s.weight == BF16;
  const char *operand = s.hasDHidden() ? "dhidden" : "gradient";
  const int64_t stride = s.hasDHidden() ? s.stride() : s.hidden;
  for (int64_t row = 0; row < s.rows; ++row)
    for (int64_t i = 0; i < s.hidden; ++i) {
      double sum = 0, sizes = 0;
      for (KernelCase &merge : ranks.merges) {
        sum += merge.at(operand, row * stride + i);
        sizes += std::abs(merge.at(operand, row * stride + i));
      }
      const double exact = whole.at("dhidden", row * s.stride() + i);
      ASSERT_NEAR(sum, exact,
                  tolerance(F32, exact, s.hidden + s.vocab) +
                      unitRoundoff(s.dhidden()) * sizes +
                      (isBF16 ? 2 * unitRoundoff(BF16) : 0))
          << row << " " << i;
    }
  for (KernelCase &merge : ranks.merges)
    EXPECT_TRUE(merge.gapsHold(operand, s.rows, s.hidden, stride));
}

constexpr Labels kSome = Labels::kSome;
const Split kCases[] = {
    {1, 6, 7, 11, 11, 2, 3, F32, F32},
    {1, 6, 7, 11, 16, 6, 0, F32, F32, Into::kGradient},
    {2, 70, 33, 131, 66, 16, 0, F32, BF16, Into::kBF16},
    {3, 60, 24, 257, 86, 37, 1, F32, F16, Into::kF32, 0, 5},
    {4, 40, 16, 513, 129, 8, 0, BF16, BF16, Into::kBF16},
    {8, 80, 10, 99, 13, 100, 2, BF16, F32, Into::kGradient, 0, 10},
    {2, 30, 16, 75, 38, 8, 0, BF16, F16, Into::kNone},
    // The last shard has few token ids, or none.
    {4, 24, 9, 9, 3, 5, 0, F32, F32, Into::kGradient},
    {8, 48, 12, 17, 3, 20, 0, BF16, BF16, Into::kF32},
    {4, 24, 5, 5, 2, 24, 1, F32, BF16, Into::kF32},
    // Several panels and blocks. The last shard fills them only partially.
    {2, 700, 24, 1500, 760, 400, 3, BF16, BF16, Into::kBF16},
    {3, 600, 6, 1300, 600, 600, 0, F32, F32, Into::kGradient},
    {2, 40, 20, 2100, 2048, 40, 0, F32, F32, Into::kGradient},
    // More vocabulary rows than one panel holds, for a weight that CUDA
    // converts to a wider type.
    {1, 2, 4096, 4150, 4200, 2, 0, BF16, F16, Into::kF32},
    // Caps that change all logits, and caps that change hardly any.
    {4, 72, 33, 130, 33, 16, 1, F32, F32, Into::kGradient, 0.8},
    {3, 90, 48, 515, 172, 64, 0, BF16, BF16, Into::kBF16, 1.5},
    {2, 60, 50, 300, 160, 100, 2, BF16, F32, Into::kF32, 30},
    // Rows without labels: on all ranks, and on all except one.
    {3, 12, 4, 10, 4, 2, 0, F32, F32, Into::kGradient, 0, 1, Labels::kNone},
    {3, 12, 4, 10, 4, 2, 1, BF16, BF16, Into::kBF16, 0, 2, Labels::kFirstShard},
    // Smoothing, also with a shard of few token ids or none.
    {1, 6, 7, 11, 16, 6, 0, F32, F32, Into::kGradient, 0, 1, kSome, 0.1},
    {2, 70, 33, 131, 66, 16, 0, F32, BF16, Into::kBF16, 0, 1, kSome, 0.3},
    {3, 60, 24, 257, 86, 37, 1, F32, F16, Into::kF32, 0, 5, kSome, 0.1},
    {4, 24, 5, 5, 2, 24, 1, F32, BF16, Into::kF32, 0, 1, kSome, 1},
    {2, 700, 24, 1500, 760, 400, 3, BF16, BF16, Into::kBF16, 0, 1, kSome, 0.1},
    {2, 30, 16, 75, 38, 8, 0, BF16, F16, Into::kNone, 0, 1, kSome, 0.2},
    {3, 12, 4, 10, 4, 2, 0, F32, F32, Into::kF32, 0, 1, Labels::kNone, 0.1},
    // Losses times the label's own probability.
    {1, 6, 7, 11, 11, 2, 3, F32, F32, Into::kF32, 0, 1, kSome, 0, true},
    {4, 72, 33, 13, 4, 16, 1, F32, F32, Into::kGradient, 0.8, 1, kSome, 0,
     true},
    {3, 90, 48, 515, 172, 64, 0, BF16, BF16, Into::kBF16, 1.5, 1, kSome, 0,
     true},
    {8, 80, 10, 99, 13, 100, 2, BF16, F32, Into::kGradient, 0, 10, kSome, 0,
     true},
    {2, 40, 20, 30, 16, 40, 0, F32, F32, Into::kF32, 0, 1, kSome, 0.2, true},
};

/// Checks head_merge for ranks with the same rows. Each rank returns the losses
/// of all rows, and the same gradient as with separate rows.
static void checkSharedRows(const Split &s, KernelCase &whole,
                            const Rows &rows, Ranks &ranks) {
  for (int64_t shard = 0; shard < s.shards; ++shard) {
    KernelCase merge =
        makeMerge(s, shard, whole, ranks.parts, /*isShared=*/true);
    const qlora_step_block step = stepOf(shard);
    expectOk(merge.run(rows.merge, nullptr, &step));
    for (int64_t line = 0; line < s.shards * s.lines; ++line) {
      const double exact = whole.at("loss", line);
      EXPECT_EQ(merge.at("count", line), whole.at("count", line));
      EXPECT_NEAR(merge.at("loss", line), exact,
                  tolerance(F32, exact, s.hidden * s.ofShard()));
    }
    for (int64_t row = 0; row < s.rows; ++row)
      ASSERT_EQ(merge.at("correct", row), whole.at("correct", row)) << row;
    KernelCase &divided = ranks.merges[size_t(shard)];
    const char *operand = s.hasDHidden() ? "dhidden" : "gradient";
    for (int64_t i = 0; s.hasGradient() && i < s.hidden; ++i)
      ASSERT_EQ(merge.at(operand, i), divided.at(operand, i)) << i;
  }
}

TEST(HeadParts, AreTheWholeHead) {
  for (const Split &s : kCases) {
    SCOPED_TRACE(s);
    KernelCase whole = makeWhole(s);
    expectOk(whole.run("reference"));
    Ranks reference = runRanks(s, whole, {"reference", "reference"});
    for (const Rows &rows : rowsOfParts()) {
      SCOPED_TRACE(rows.part);
      Ranks ranks = runRanks(s, whole, rows);
      checkStates(s, reference, ranks);
      checkLosses(s, whole, ranks);
      if (s.hasGradient())
        checkGradients(s, whole, ranks);
      checkSharedRows(s, whole, rows, ranks);
    }
  }
}

/// Rows of w after the end of the vocabulary must not count. Their logits would
/// be 0, far above all others in this test.
TEST(HeadParts, RowsBehindTheVocabularyAreNoWords) {
  for (double cap : {0.0, 3.0})
    for (const Rows &rows : rowsOfParts()) {
      SCOPED_TRACE(rows.part);
      const Split s = {2,  4, 40, 300, 280, 4, 0, F32, F32, Into::kGradient,
                       cap};
      KernelCase whole = makeWhole(s);
      for (int64_t i = 0; i < s.rows * s.hidden; ++i)
        whole.set("hidden", i, 1);
      for (int64_t i = 0; i < s.vocab * s.hidden; ++i)
        whole.set("w", i, -1);
      for (int64_t row = 0; row < s.rows; ++row)
        whole.set("targets", row, double(row));
      Ranks ranks = runRanks(s, whole, rows);
      for (KernelCase &merge : ranks.merges)
        EXPECT_NEAR(merge.at("loss", 0), 2 * std::log(300.0), 1e-5);
      EXPECT_EQ(ranks.parts[1].at("states", 1), 20);
      EXPECT_EQ(ranks.parts[1].at("states", 3), 280);
    }
}

TEST(HeadParts, FirstOfEqualMaximaIsTheAnswer) {
  for (const Rows &rows : rowsOfParts()) {
    const Split s = {4, 8, 3, 40, 10, 8, 0, F32, F32, Into::kNone};
    KernelCase whole = makeWhole(s);
    for (int64_t i = 0; i < s.vocab * s.hidden; ++i)
      whole.set("w", i, 0.5);
    for (int64_t row = 0; row < s.rows; ++row)
      whole.set("targets", row, row % 2 ? 10.0 * double(row / 2) : 0);
    Ranks ranks = runRanks(s, whole, rows);
    for (int64_t row = 0; row < s.rows; ++row)
      EXPECT_EQ(ranks.merges[size_t(row / 2)].at("correct", row % 2),
                row % 2 == 0 || row == 1)
          << rows.merge << " " << row;
  }
}

/// The CUDA implementation skips chunks in which no rank has labels.
TEST(HeadParts, CudaComputesAsManyRowsAsHaveLabels) {
  if (!CudaGpu::get())
    GTEST_SKIP() << CudaGpu::reason();
  const Split s = {2, 80, 20, 90, 45, 8, 0, F32, F32, Into::kGradient};
  KernelCase whole = makeWhole(s);
  expectOk(whole.run("reference"));
  const auto labels =
      int64_t(std::max(whole.at("count", 0), whole.at("count", 1)));
  ASSERT_LE(2 * labels, 56); // seven of ten chunks
  Ranks exact = runRanks(s, whole, {"cuda", "cuda"}, labels);
  checkLosses(s, whole, exact);
  checkGradients(s, whole, exact);
  // If labelled_rows is below the actual count, the loss is NaN, not wrong.
  Ranks tooFew = runRanks(s, whole, {"cuda", "cuda"}, 8);
  EXPECT_TRUE(std::isnan(tooFew.merges[1].at("loss", 0)));
  EXPECT_EQ(tooFew.merges[1].at("count", 0), whole.at("count", 1));
}

/// Tests operands at 16-byte boundaries, which are loaded as vectors, and other
/// operands.
TEST(HeadParts, BeginAtAnyElementOnCuda) {
  if (!CudaGpu::get())
    GTEST_SKIP() << CudaGpu::reason();
  for (const Split &s :
       {Split{2, 12, 32, 120, 64, 4, 0, BF16, BF16, Into::kBF16, 2},
        Split{2, 12, 32, 120, 64, 4, 0, F32, F32, Into::kGradient},
        Split{2, 12, 32, 120, 64, 4, 0, F32, F16, Into::kF32}}) {
    SCOPED_TRACE(s);
    KernelCase whole = makeWhole(s);
    expectOk(whole.run("reference"));
    for (bool isShifted : {false, true}) {
      Ranks ranks = runRanks(s, whole, {"cuda", "cuda", isShifted});
      checkLosses(s, whole, ranks);
      checkGradients(s, whole, ranks);
    }
  }
}

/// The observer gets the logits of all rows with a target, up to the end of the
/// vocabulary.
TEST(HeadParts, ObserverSeesTheLogitsOfTheirWords) {
  const Split s = {2, 10, 6, 610, 320, 3, 0, F32, BF16, Into::kNone};
  KernelCase whole = makeWhole(s);
  const auto exact = [&](int64_t row, int64_t word) {
    double sum = 0;
    for (int64_t i = 0; i < s.hidden; ++i)
      sum += whole.at("hidden", row * s.hidden + i) *
             whole.at("w", word * s.hidden + i);
    return sum;
  };
  for (const std::string &implementation : allRowsToTest("head_part"))
    for (int64_t shard : {0, 1}) {
      SCOPED_TRACE(implementation);
      std::vector<int64_t> seen(size_t(s.rows));
      KernelObserver observer;
      observer.onLogits = [&](const LogitsBlock &block) {
        ASSERT_EQ(block.vocab, s.vocab);
        const int64_t first = block.firstWord + shard * block.piece;
        for (int64_t i = 0; i < int64_t(block.rows.size()) * block.words; ++i) {
          const int64_t row = block.rows[size_t(i / block.words)];
          const int64_t word = first + i % block.words;
          if (word >= s.vocab)
            continue;
          ASSERT_NEAR(block.logits[i], exact(row, word),
                      tolerance(F32, 1, s.hidden));
          ++seen[size_t(row)];
        }
      };
      const qlora_step_block step = stepOf(shard);
      KernelCase part = makePart(s, shard, whole);
      expectOk(part.run(implementation, &observer, &step));
      for (int64_t row = 0; row < s.rows; ++row)
        EXPECT_EQ(seen[size_t(row)], row % 3 == 1 ? 0 : shard ? 290 : s.piece);
    }
}

#ifdef _OPENMP
TEST(HeadParts, BitsDoNotDependOnThreads) {
  const Split s = {2, 500, 96, 2000, 1100, 300, 0, BF16, BF16, Into::kGradient};
  KernelCase whole = makeWhole(s);
  const int before = omp_get_max_threads();
  std::vector<std::vector<uint8_t>> results;
  for (int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    Ranks ranks = runRanks(s, whole, {"chunked", "rows"});
    std::vector<uint8_t> bytes;
    for (KernelCase &merge : ranks.merges)
      for (const char *name : {"states", "loss", "gradient"})
        bytes.insert(bytes.end(), merge.data(name),
                     merge.data(name) + merge.bytes(name));
    results.push_back(bytes);
  }
  omp_set_num_threads(before);
  EXPECT_TRUE(results[0] == results[1]);
  EXPECT_TRUE(results[0] == results[2]);
}
#endif

} // namespace
} // namespace qlora
