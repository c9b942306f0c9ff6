// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad: compares the reference with finite differences,
// and the chunked implementations with the reference.

#include <algorithm>
#include <map>

#include "tests/conformance/KernelCase.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype F16 = QLORA_DTYPE_F16;

struct Head {
  int64_t rows, hidden, vocab, chunk, gap;
  qlora_dtype dtype, weight, dhidden;
  bool hasWeightGradient;
  double cap = 0;
  int64_t lines = 1;
  int64_t replaced = 0; ///< tokens with replacement logits
  double smoothing = 0;
  bool hasOwnProbability = false;
};

/// Returns the token id of replaced logits `column`. The ids are evenly spaced,
/// from the last token id downwards.
int64_t replacedWord(const Head &h, int64_t column) {
  return h.vocab - 1 - column * (h.vocab / h.replaced);
}

std::ostream &operator<<(std::ostream &out, const Head &h) {
  return out << h.rows << "x" << h.hidden << "x" << h.vocab << " chunk "
             << h.chunk << " " << dtypeName(h.dtype) << ","
             << dtypeName(h.weight) << "->" << dtypeName(h.dhidden) << " cap "
             << h.cap << " replaced " << h.replaced << " smoothing "
             << h.smoothing << " own " << h.hasOwnProbability;
}

KernelCase makeCase(const Head &h, bool isGradient) {
  KernelCase::Types types = {
      {"hidden", h.dtype}, {"w", h.weight}, {"targets", QLORA_DTYPE_I32},
      {"loss", F32},       {"count", F32},  {"correct", QLORA_DTYPE_I32}};
  if (isGradient)
    types["dhidden"] = h.dhidden;
  if (isGradient && h.hasWeightGradient)
    types["dw"] = F32;
  if (h.replaced) {
    types["columns"] = h.dtype;
    types["words"] = F32;
    if (isGradient)
      types["dcolumns"] = h.dtype;
  }
  KernelCase::Constants constants = {
      {"rows", h.rows},           {"hidden_size", h.hidden},
      {"vocab", h.vocab},         {"ldh", h.hidden + h.gap},
      {"lddh", h.hidden + h.gap}, {"cap", bits(h.cap)},
      {"chunk_rows", h.chunk},    {"lines", h.lines},
      {"replaced", h.replaced}};
  if (h.smoothing != 0 || h.hasOwnProbability)
    constants["smoothing"] = bits(h.smoothing);
  if (h.hasOwnProbability)
    constants["own_probability"] = 1;
  KernelCase test(isGradient ? "head_loss_grad" : "head_loss", types,
                  constants);
  test.fill("hidden", h.rows, h.hidden, h.hidden + h.gap, 1);
  test.fill("w", h.vocab, h.hidden, h.hidden, 2);
  if (isGradient && h.hasWeightGradient)
    test.fill("dw", h.vocab, h.hidden, h.hidden, 3);
  if (h.replaced)
    test.fill("columns", h.rows, h.replaced, h.replaced, 5);
  for (int64_t column = 0; column < h.replaced; ++column)
    test.set("words", column, double(replacedWord(h, column)));
  std::mt19937 generator(4);
  for (int64_t row = 0; row < h.rows; ++row)
    test.set("targets", row,
             row % 3 == 1 ? -100 : double(generator() % uint64_t(h.vocab)));
  return test;
}

const Head kCases[] = {
    {1, 1, 1, 1, 0, F32, F32, F32, true},
    {5, 7, 11, 2, 3, F32, F32, F32, true},
    {70, 33, 130, 16, 0, F32, BF16, F32, false},
    {100, 64, 257, 37, 1, F32, F16, F32, true},
    {90, 48, 200, 64, 0, BF16, BF16, BF16, true},
    {61, 50, 99, 100, 2, BF16, F32, BF16, true},
    {40, 16, 75, 8, 0, BF16, F16, F32, false},
    {4, 200, 6, 3, 0, BF16, F32, F32, true},
    // Full and partial blocks of rows, and full and partial vocabulary panels.
    {700, 40, 1500, 400, 3, BF16, BF16, BF16, true},
    {1000, 6, 515, 1000, 0, F32, F32, F32, true},
    // More rows than threads in the thread block that lists labelled rows.
    {1100, 12, 40, 400, 1, F32, F32, BF16, true},
    // More vocabulary rows than one panel holds, for a weight that CUDA
    // converts to a wider type.
    {3, 4096, 4200, 2, 0, BF16, F16, BF16, false},
    // Logit caps that change all logits, and caps that change hardly any.
    {70, 33, 130, 16, 1, F32, F32, F32, true, 0.8},
    {90, 48, 515, 64, 0, BF16, BF16, BF16, true, 1.5},
    {61, 50, 300, 100, 2, BF16, F32, BF16, true, 30},
    {40, 16, 75, 8, 0, F32, BF16, F32, false, 30},
    // One loss per sequence. Chunks contain incomplete sequences.
    {70, 33, 130, 16, 0, F32, F32, F32, false, 0, 5},
    {90, 48, 200, 64, 1, BF16, BF16, BF16, false, 0, 90},
    // Replaced logits of one token id, of ids in several panels, of all ids.
    {70, 33, 130, 16, 1, F32, BF16, F32, false, 0, 1, 1},
    {61, 50, 515, 100, 2, BF16, F32, BF16, false, 3, 1, 9},
    {300, 12, 700, 128, 0, BF16, BF16, F32, false, 0.8, 5, 40},
    {11, 3, 6, 4, 0, F32, F32, F32, false, 0, 1, 6},
    // Smoothing: of one token, with and without cap, gradients and replaced
    // logits, all of the loss, and in several panels and blocks.
    {1, 1, 1, 1, 0, F32, F32, F32, true, 0, 1, 0, 0.1},
    {5, 7, 11, 2, 3, F32, F32, F32, true, 0, 1, 0, 0.3},
    {70, 33, 130, 16, 0, F32, BF16, F32, false, 0.8, 1, 0, 0.1},
    {61, 50, 515, 100, 2, BF16, BF16, BF16, true, 1.5, 1, 0, 0.2},
    {90, 48, 200, 64, 1, BF16, BF16, BF16, true, 0, 1, 0, 0.1},
    {40, 16, 75, 8, 0, BF16, F16, F32, false, 30, 5, 0, 1},
    {300, 12, 700, 128, 0, BF16, BF16, F32, false, 0.8, 5, 40, 0.1},
    {61, 50, 515, 100, 2, BF16, F32, BF16, false, 0, 1, 9, 0.4},
    {11, 3, 6, 4, 0, F32, F32, F32, false, 0, 1, 6, 0.1},
    {700, 40, 1500, 400, 3, BF16, BF16, BF16, true, 0, 1, 0, 0.1},
    {1000, 6, 515, 1000, 0, F32, F32, F32, true, 2, 1, 0, 0.1},
    // Losses times the label's own probability.
    {1, 1, 1, 1, 0, F32, F32, F32, true, 0, 1, 0, 0, true},
    {5, 7, 11, 2, 3, F32, F32, F32, true, 0, 1, 0, 0, true},
    {70, 33, 6, 16, 1, F32, F32, F32, true, 0.8, 1, 0, 0, true},
    {90, 48, 20, 64, 0, BF16, BF16, BF16, true, 1.5, 1, 0, 0, true},
    {700, 40, 1500, 400, 3, BF16, BF16, BF16, true, 0, 1, 0, 0, true},
    {70, 33, 13, 16, 0, F32, BF16, F32, false, 0, 5, 0, 0, true},
    {300, 12, 70, 128, 0, BF16, BF16, F32, false, 0.8, 5, 40, 0, true},
    {61, 50, 15, 100, 2, BF16, F32, BF16, true, 0, 1, 0, 0.2, true},
};

/// Returns the relative rounding of the logits' gradient. It is rounded to bf16
/// if the operands of the gradient GEMMs are bf16.
double rounding(const Head &h) {
  return h.dtype == BF16 ? unitRoundoff(BF16) : 0;
}

void checkGradients(const Head &h, KernelCase &expected, KernelCase &got) {
  // The sum of |dlogits| over a row is at most 2, and |w| <= 1.
  for (int64_t row = 0; row < h.rows; ++row)
    for (int64_t i = 0; i < h.hidden; ++i) {
      const int64_t at = row * (h.hidden + h.gap) + i;
      const double exact = expected.at("dhidden", at);
      ASSERT_NEAR(got.at("dhidden", at), exact,
                  tolerance(h.dhidden, exact, h.hidden + h.vocab) +
                      2 * rounding(h))
          << row;
    }
  for (int64_t i = 0; i < h.rows * h.replaced; ++i) {
    const double exact = expected.at("dcolumns", i);
    ASSERT_NEAR(got.at("dcolumns", i), exact,
                tolerance(h.dtype, exact, h.hidden + h.vocab) + rounding(h));
  }
  EXPECT_TRUE(got.gapsHold("dhidden", h.rows, h.hidden, h.hidden + h.gap));
  for (int64_t i = 0; h.hasWeightGradient && i < h.vocab * h.hidden; ++i) {
    const double exact = expected.at("dw", i);
    ASSERT_NEAR(got.at("dw", i), exact,
                tolerance(F32, exact, h.hidden + h.rows) +
                    double(h.rows) * rounding(h));
  }
}

void checkRow(const Head &h, bool isGradient, KernelCase &expected,
              const std::string &implementation) {
  SCOPED_TRACE(implementation);
  KernelCase got = makeCase(h, isGradient);
  expectOk(got.run(implementation));
  for (int64_t line = 0; line < h.lines; ++line) {
    EXPECT_EQ(got.at("count", line), expected.at("count", line));
    EXPECT_NEAR(got.at("loss", line), expected.at("loss", line),
                tolerance(F32, expected.at("loss", line), h.hidden * h.rows));
  }
  for (int64_t row = 0; row < h.rows; ++row)
    EXPECT_EQ(got.at("correct", row), expected.at("correct", row));
  if (isGradient)
    checkGradients(h, expected, got);
}

TEST(HeadLoss, AgreesWithTheReference) {
  for (const Head &h : kCases)
    for (bool isGradient : {false, true}) {
      SCOPED_TRACE(h);
      KernelCase expected = makeCase(h, isGradient);
      expectOk(expected.run("reference"));
      for (const std::string &row :
           rowsToTest(isGradient ? "head_loss_grad" : "head_loss"))
        checkRow(h, isGradient, expected, row);
    }
}

/// CUDA skips chunks without labels, according to labelled_rows of the step
/// block.
TEST(HeadLoss, CudaComputesAsManyRowsAsHaveLabels) {
  if (!CudaGpu::get())
    GTEST_SKIP() << CudaGpu::reason();
  const Head h = {70, 20, 90, 16, 1, F32, F32, F32, true};
  KernelCase whole = makeCase(h, true), exact = makeCase(h, true);
  expectOk(whole.run("cuda"));
  qlora_step_block step = {};
  step.labelled_rows = uint64_t(whole.at("count", 0));
  ASSERT_LE(step.labelled_rows, 48u); // three of five chunks
  expectOk(exact.run("cuda", nullptr, &step));
  for (const char *name : {"loss", "count"})
    EXPECT_EQ(exact.at(name, 0), whole.at(name, 0));
  for (int64_t i = 0; i < h.rows * (h.hidden + h.gap); ++i)
    if (i % (h.hidden + h.gap) < h.hidden) {
      ASSERT_EQ(exact.at("dhidden", i), whole.at("dhidden", i)) << i;
    }
  // If labelled_rows is below the actual count, the loss is NaN, not wrong.
  step.labelled_rows = 32;
  KernelCase tooFew = makeCase(h, true);
  expectOk(tooFew.run("cuda", nullptr, &step));
  EXPECT_TRUE(std::isnan(tooFew.at("loss", 0)));
  EXPECT_EQ(tooFew.at("count", 0), whole.at("count", 0));
}

double lossWith(const Head &h, const char *operand, int64_t index,
                double change) {
  KernelCase test = makeCase(h, false);
  test.set(operand, index, test.at(operand, index) + change);
  expectOk(test.run("reference"));
  return test.at("loss", 0);
}

/// Returns the derivative of the reference's loss from finite differences.
struct LossSlope {
  static constexpr double kStep = 0x1p-6;
  /// Error bound: kStep^2 / 6 times the third derivative, which is about 6 for
  /// the sum of 6 rows' losses. Added is the f32 rounding of a loss below 16,
  /// divided by the step.
  static constexpr double kLimit = 6 * kStep * kStep / 6 + 16 * 0x1p-24 / kStep;
  const Head &h;

  double operator()(const char *operand, int64_t i) const {
    return (lossWith(h, operand, i, kStep) - lossWith(h, operand, i, -kStep)) /
           (2 * kStep);
  }
};

/// Cap and smoothing.
class HeadLossDerivative
    : public testing::TestWithParam<std::pair<double, double>> {};

INSTANTIATE_TEST_SUITE_P(Caps, HeadLossDerivative,
                         testing::Values(std::pair(0.0, 0.0),
                                         std::pair(1.2, 0.0),
                                         std::pair(0.0, 0.3),
                                         std::pair(1.2, 0.3)));

TEST_P(HeadLossDerivative, IsThatOfTheReference) {
  const auto [cap, smoothing] = GetParam();
  const Head h = {6, 5, 9, 3, 0, F32, F32, F32, true, cap, 1, 0, smoothing};
  KernelCase before = makeCase(h, true), after = makeCase(h, true);
  expectOk(after.run("reference"));
  const LossSlope slope{h};
  for (int64_t i = 0; i < h.rows * h.hidden; ++i)
    EXPECT_NEAR(after.at("dhidden", i), slope("hidden", i), slope.kLimit);
  for (int64_t i = 0; i < h.vocab * h.hidden; ++i)
    EXPECT_NEAR(after.at("dw", i) - before.at("dw", i), slope("w", i),
                slope.kLimit);
}

/// The own probability is a constant in the derivative, so the gradient is the
/// cross-entropy's times this number.
TEST(HeadLoss, OwnProbabilityMultipliesLossAndGradient) {
  const Head plain = {6, 5, 9, 3, 0, F32, F32, F32, false, 1.2, 6};
  Head own = plain;
  own.hasOwnProbability = true;
  KernelCase before = makeCase(plain, true), after = makeCase(own, true);
  expectOk(before.run("reference"));
  expectOk(after.run("reference"));
  for (int64_t row = 0; row < plain.rows; ++row) {
    const double loss = before.at("loss", row), scale = std::exp(-loss);
    EXPECT_NEAR(after.at("loss", row), scale * loss, 1e-6);
    EXPECT_EQ(after.at("count", row), before.at("count", row));
    for (int64_t i = row * plain.hidden; i < (row + 1) * plain.hidden; ++i)
      EXPECT_NEAR(after.at("dhidden", i), scale * before.at("dhidden", i),
                  1e-6);
  }
}

TEST(HeadLoss, RefusesSmoothingThatIsNoShare) {
  for (double smoothing : {-0.1, 1.5, double(NAN)}) {
    const Head h = {6, 5, 9, 3, 0, F32, F32, F32, false, 0, 1, 0, smoothing};
    EXPECT_EQ(
        findKernelRow("head_loss.chunked")->reject(makeCase(h, false).request),
        "smoothing must be in [0, 1]");
  }
}

TEST(HeadLoss, DerivativeByGivenLogitsIsThatOfTheReference) {
  const Head h = {6, 5, 9, 3, 0, F32, F32, F32, false, 1.2, 1, 3, 0.2};
  KernelCase after = makeCase(h, true);
  expectOk(after.run("reference"));
  const LossSlope slope{h};
  for (int64_t i = 0; i < h.rows * h.hidden; ++i)
    EXPECT_NEAR(after.at("dhidden", i), slope("hidden", i), slope.kLimit);
  for (int64_t i = 0; i < h.rows * h.replaced; ++i)
    EXPECT_NEAR(after.at("dcolumns", i), slope("columns", i), slope.kLimit);
  for (int64_t i = 0; i < h.replaced * h.hidden; ++i)
    EXPECT_EQ(slope("w", replacedWord(h, i / h.hidden) * h.hidden +
                             i % h.hidden),
              0);
}

TEST(HeadLoss, NamesAGivenLogitOfNoWord) {
  const Head h = {6, 5, 9, 3, 0, F32, F32, F32, false, 0, 1, 2};
  for (double word : {9.0, -1.0, 2.5}) {
    KernelCase test = makeCase(h, true);
    test.set("words", 1, word);
    EXPECT_NE(test.run("chunked").message().find("outside of the vocabulary"),
              std::string::npos);
  }
  KernelCase test = makeCase(h, true);
  for (int64_t column : {0, 1})
    test.set("words", column, 4);
  EXPECT_NE(test.run("chunked").message().find("replaces token 4 twice"),
            std::string::npos);
}

TEST(HeadLoss, FirstOfEqualMaximaIsTheAnswer) {
  const Head h = {2, 3, 40, 2, 0, F32, F32, F32, false};
  for (const std::string &implementation : allRowsToTest("head_loss")) {
    KernelCase test = makeCase(h, false);
    for (int64_t i = 0; i < h.vocab * h.hidden; ++i)
      test.set("w", i, 0.5);
    test.set("targets", 0, 0);
    test.set("targets", 1, 1);
    expectOk(test.run(implementation));
    EXPECT_EQ(test.at("correct", 0), 1);
    EXPECT_EQ(test.at("correct", 1), 0);
    EXPECT_NEAR(test.at("loss", 0), 2 * std::log(40.0), 1e-5);
  }
}

TEST(HeadLoss, NamesTheRowOfAnImpossibleTarget) {
  const Head h = {4, 3, 10, 2, 0, F32, F32, F32, false};
  for (const char *implementation : {"reference", "chunked"})
    for (int target : {10, -1, -101}) {
      KernelCase test = makeCase(h, false);
      test.set("targets", 2, target);
      const Status status = test.run(implementation);
      EXPECT_EQ(status.code(), StatusCode::kInternal);
      EXPECT_NE(
          status.message().find("row 2 has target " + std::to_string(target)),
          std::string::npos)
          << status.message();
    }
}

TEST(HeadLoss, ImpossibleTargetsAreNaNOnCuda) {
  if (!CudaGpu::get())
    GTEST_SKIP() << CudaGpu::reason();
  const Head h = {4, 3, 10, 2, 0, F32, F32, F32, false};
  for (int target : {10, -1, -101}) {
    KernelCase test = makeCase(h, true);
    test.set("targets", 2, target);
    expectOk(test.run("cuda"));
    EXPECT_TRUE(std::isnan(test.at("loss", 0)));
    for (int64_t i = 0; i < h.hidden; ++i)
      EXPECT_EQ(test.at("dhidden", 2 * h.hidden + i), 0);
  }
}

TEST(HeadLoss, NoLabelAtAllIsZero) {
  const Head h = {5, 4, 10, 2, 0, F32, F32, F32, true};
  for (const std::string &implementation : allRowsToTest("head_loss")) {
    KernelCase test = makeCase(h, true);
    for (int64_t row = 0; row < h.rows; ++row)
      test.set("targets", row, -100);
    expectOk(test.run(implementation));
    EXPECT_EQ(test.at("loss", 0), 0);
    EXPECT_EQ(test.at("count", 0), 0);
    for (int64_t i = 0; i < h.rows * h.hidden; ++i)
      EXPECT_EQ(test.at("dhidden", i), 0);
  }
}

TEST(HeadLoss, ObserverSeesTheLogitsOfLabelledRows) {
  const Head h = {10, 6, 600, 3, 0, F32, BF16, F32, false};
  for (const std::string &implementation : allRowsToTest("head_loss")) {
    KernelCase test = makeCase(h, true);
    std::map<int32_t, std::vector<bool>> seen; // row -> token ids
    KernelObserver observer;
    observer.onLogits = [&](const LogitsBlock &block) {
      ASSERT_EQ(block.vocab, h.vocab);
      for (int64_t i = 0; i < int64_t(block.rows.size()) * block.words; ++i) {
        const int32_t row = block.rows[size_t(i / block.words)];
        const int64_t word = block.firstWord + i % block.words;
        auto &words = seen.try_emplace(row, h.vocab).first->second;
        EXPECT_FALSE(words[size_t(word)]) << "twice";
        words[size_t(word)] = true;
        double exact = 0;
        for (int64_t k = 0; k < h.hidden; ++k)
          exact += test.at("hidden", row * h.hidden + k) *
                   test.at("w", word * h.hidden + k);
        EXPECT_NEAR(block.logits[i], exact, tolerance(F32, exact, h.hidden));
      }
    };
    expectOk(test.run(implementation, &observer));
    std::vector<int32_t> rows;
    for (const auto &[row, words] : seen) {
      rows.push_back(row);
      EXPECT_EQ(std::count(words.begin(), words.end(), true), h.vocab);
    }
    EXPECT_EQ(rows, (std::vector<int32_t>{0, 2, 3, 5, 6, 8, 9}));
  }
}

#ifdef _OPENMP
TEST(HeadLoss, BitsDoNotDependOnThreads) {
  const Head h = {500, 96, 2000, 300, 0, BF16, BF16, BF16, true};
  const int before = omp_get_max_threads();
  std::vector<std::vector<uint8_t>> results;
  for (int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    KernelCase test = makeCase(h, true);
    expectOk(test.run("chunked"));
    std::vector<uint8_t> bytes;
    for (const char *name : {"loss", "dhidden", "dw"})
      bytes.insert(bytes.end(), test.data(name),
                   test.data(name) + test.bytes(name));
    results.push_back(bytes);
  }
  omp_set_num_threads(before);
  EXPECT_TRUE(results[0] == results[1]);
  EXPECT_TRUE(results[0] == results[2]);
}
#endif

} // namespace
} // namespace qlora
