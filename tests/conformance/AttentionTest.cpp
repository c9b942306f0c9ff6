// SPDX-License-Identifier: MIT

// attention and attention_grad: compares the reference gradient with finite
// differences of the reference forward, and the other implementations with the
// reference.

#include "tests/conformance/AttentionCase.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;

/// Returns the largest error of a strided result, divided by the tolerance.
double worstError(KernelCase &expected, KernelCase &got, const char *operand,
                  int64_t rows, int64_t columns, int64_t ld, int64_t terms,
                  double magnitude, const Magnitudes &magnitudes = {},
                  int roundings = 0) {
  const auto sums = magnitudes.find(operand);
  double worst = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t i = row * ld + column;
      const double exact = expected.at(operand, i);
      double allowed = tolerance(got.dtype(operand), exact, terms, magnitude);
      if (sums != magnitudes.end())
        allowed += roundings * unitRoundoff(BF16) * sums->second[i];
      const double error = std::abs(got.at(operand, i) - exact) / allowed;
      worst = std::max(worst, std::isnan(error) ? 1e30 : error);
    }
  EXPECT_TRUE(got.gapsHold(operand, rows, columns, ld)) << operand;
  return worst;
}

const Attention kCases[] = {
    {1, 1, 1, 1, 1, 0, 0, Segments::kNone, F32},
    {2, 7, 2, 1, 5, 0, 3, Segments::kNone, F32},
    {1, 130, 2, 2, 16, 0, 0, Segments::kNone, F32},
    {1, 300, 4, 2, 8, 0, 1, Segments::kPacked, F32},
    {2, 261, 3, 1, 12, 40, 0, Segments::kNone, F32},
    {1, 300, 2, 1, 9, 150, 2, Segments::kPadded, F32},
    {2, 33, 6, 3, 64, 0, 0, Segments::kPadded, BF16},
    {1, 270, 2, 1, 20, 33, 4, Segments::kPacked, BF16},
    {1, 129, 2, 2, 8, 1, 0, Segments::kNone, BF16},
    {1, 70, 2, 1, 130, 0, 1, Segments::kPacked, F32},
    {1, 65, 2, 2, 256, 20, 0, Segments::kNone, BF16},
    {1, 200, 4, 2, 128, 0, 0, Segments::kNone, BF16},
    {2, 150, 2, 1, 128, 70, 8, Segments::kPacked, BF16},
    {1, 140, 2, 2, 80, 0, 16, Segments::kPadded, BF16},
    {1, 131, 3, 3, 64, 0, 3, Segments::kNone, BF16},
    {1, 260, 2, 1, 40, 100, 0, Segments::kPacked, BF16},
    // Enough key heads for all three workspace slots of the CPU kernel.
    {2, 50, 4, 2, 24, 0, 4, Segments::kPacked, BF16},
    {3, 40, 4, 2, 12, 9, 0, Segments::kNone, F32},
    // Lengths that are multiples of cuDNN's tile size, which cuDNN requires.
    {2, 128, 4, 2, 64, 0, 0, Segments::kPadded, BF16},
    {1, 256, 2, 1, 128, 100, 8, Segments::kPacked, BF16},
    {1, 128, 2, 2, 80, 0, 16, Segments::kNone, BF16},
    {2, 128, 4, 2, 64, 0, 0, Segments::kOne, BF16},
    {1, 256, 2, 1, 128, 100, 8, Segments::kOne, BF16},
    {1, 256, 3, 1, 32, 50, 0, Segments::kNone, BF16},
    // The gradient runs in two steps of two key heads each.
    {2, 128, 8, 4, 32, 70, 8, Segments::kPadded, BF16},
    // Score caps that change all scores or hardly any, and attention sinks.
    {1, 150, 4, 2, 20, 0, 3, Segments::kPadded, F32, 0.7},
    {1, 270, 2, 1, 9, 33, 0, Segments::kNone, F32, 50},
    {2, 131, 4, 2, 64, 0, 8, Segments::kPacked, BF16, 0.5},
    {1, 128, 2, 2, 128, 40, 0, Segments::kNone, BF16, 30},
    {1, 150, 4, 2, 20, 12, 3, Segments::kPadded, F32, 0, true},
    {2, 131, 4, 2, 64, 0, 8, Segments::kPadded, BF16, 0, true},
    {1, 140, 3, 1, 80, 70, 1, Segments::kNone, BF16, 0.6, true},
};

TEST(Attention, AgreesWithTheReference) {
  for (const Attention &a : kCases) {
    SCOPED_TRACE(a);
    KernelCase expected = makeCase(a, false);
    expectOk(expected.run("reference"));
    const Magnitudes sums =
        a.dtype == BF16 ? forwardMagnitudes(a) : Magnitudes();
    for (const std::string &row : rowsToTest("attention")) {
      SCOPED_TRACE(row);
      KernelCase got = makeCase(a, false);
      if (!got.isTaken(row))
        continue;
      expectOk(got.run(row));
      // Errors of the scores (sums of `dim` products) reach the output.
      const int64_t terms = a.dim + a.length;
      EXPECT_LE(worstError(expected, got, "out", a.tokens(), a.width(),
                           a.width() + a.gap, terms, 1, sums,
                           roundingsOf(a, row)),
                1);
      EXPECT_LE(worstError(expected, got, "lse", a.batch * a.heads, a.length,
                           a.length, terms, 1),
                1);
    }
  }
}

void expectZeroInPadding(const Attention &a, const std::string &row) {
  KernelCase forward = makeCase(a, false), gradient = makeGradient(a);
  if (!forward.isTaken(row) || !gradient.isTaken(row))
    return;
  expectOk(forward.run(row));
  expectOk(gradient.run(row));
  const int64_t token = a.length - 1;
  EXPECT_EQ(forward.at("lse", token), 0);
  for (int64_t i = 0; i < a.width(); ++i) {
    EXPECT_EQ(forward.at("out", token * a.width() + i), 0);
    EXPECT_EQ(gradient.at("dq", token * a.width() + i), 0);
  }
  for (int64_t i = 0; i < a.keyWidth(); ++i) {
    EXPECT_EQ(gradient.at("dk", token * a.keyWidth() + i), 0);
    EXPECT_EQ(gradient.at("dv", token * a.keyWidth() + i), 0);
  }
}

TEST(Attention, PaddingGivesZeroAndNoGradient) {
  for (const std::string &row : rowsToTest("attention"))
    for (qlora_dtype type : {F32, BF16}) {
      SCOPED_TRACE(row);
      expectZeroInPadding({1, 50, 2, 1, 8, 0, 0, Segments::kPadded, type}, row);
      expectZeroInPadding({1, 128, 2, 1, 64, 0, 0, Segments::kPadded, type},
                          row);
      expectZeroInPadding({1, 128, 2, 1, 64, 0, 0, Segments::kOne, type}, row);
      // Blocks that contain only padding.
      expectZeroInPadding({1, 600, 1, 1, 8, 0, 0, Segments::kPadded, type},
                          row);
    }
}

TEST(Attention, WindowOfOneCopiesTheValues) {
  const Attention a = {1, 20, 2, 1, 4, 1, 0, Segments::kNone, F32};
  for (const std::string &row : rowsToTest("attention")) {
    SCOPED_TRACE(row);
    KernelCase test = makeCase(a, false);
    if (!test.isTaken(row))
      continue;
    expectOk(test.run(row));
    for (int64_t token = 0; token < a.length; ++token)
      for (int64_t i = 0; i < a.dim; ++i)
        EXPECT_EQ(test.at("out", token * a.width() + i),
                  test.at("v", token * a.keyWidth() + i));
  }
}

TEST(AttentionGrad, AgreesWithTheReference) {
  for (const Attention &a : kCases) {
    SCOPED_TRACE(a);
    KernelCase expected = makeGradient(a);
    expectOk(expected.run("reference"));
    const Magnitudes sums =
        a.dtype == BF16 ? RoundedGradient(a).magnitudes() : Magnitudes();
    for (const std::string &row : rowsToTest("attention_grad")) {
      SCOPED_TRACE(row);
      KernelCase got = makeGradient(a);
      if (!got.isTaken(row))
        continue;
      expectOk(got.run(row));
      const int64_t terms = 2 * a.dim + a.length * a.heads / a.keyHeads;
      const int roundings = roundingsOf(a, row);
      EXPECT_LE(worstError(expected, got, "dq", a.tokens(), a.width(),
                           a.width() + a.gap, terms, 2, sums, roundings),
                1);
      for (const char *name : {"dk", "dv"})
        EXPECT_LE(worstError(expected, got, name, a.tokens(), a.keyWidth(),
                             a.keyWidth() + a.gap, terms, 2, sums, roundings),
                  1)
            << name;
    }
  }
}

/// Compares the gradients of cuDNN and of our CUDA kernel, both for the result
/// of our forward. On a real GPU, sequences have a realistic length. They are
/// shorter on the software platform, which would be too slow for that length.
TEST(CudnnAttention, AgreesWithOurOwn) {
  if (!CudaGpu::get())
    GTEST_SKIP() << CudaGpu::reason();
  const Attention a = {
      2,   CudaGpu::isReal() ? 2048 : 256, 4, 2, 64, 0, 0, Segments::kPadded,
      BF16};
  KernelCase ours = makeCase(a, false), cudnns = makeCase(a, false);
  if (CudaGpu::isReal() && !cudnns.isTaken("cudnn"))
    GTEST_SKIP() << CudaGpu::get()->cudnn().status().message();
  expectOk(ours.run("cuda"));
  expectOk(cudnns.run("cudnn"));
  const Magnitudes sums = forwardMagnitudes(a);
  EXPECT_LE(worstError(ours, cudnns, "out", a.tokens(), a.width(), a.width(),
                       a.dim + a.length, 1, sums, 3),
            1);
  KernelCase gradients[] = {makeCase(a, true), makeCase(a, true)};
  for (KernelCase &gradient : gradients)
    for (const char *name : {"out", "lse"})
      std::copy_n(ours.data(name), ours.bytes(name), gradient.data(name));
  auto &[ofOurs, ofCudnn] = gradients;
  expectOk(ofOurs.run("cuda"));
  expectOk(ofCudnn.run("cudnn"));
  const Magnitudes of = RoundedGradient(a).magnitudes();
  const int64_t terms = 2 * a.dim + a.length * a.heads / a.keyHeads;
  for (const char *name : {"dq", "dk", "dv"}) {
    const int64_t width = name[1] == 'q' ? a.width() : a.keyWidth();
    EXPECT_LE(worstError(ofOurs, ofCudnn, name, a.tokens(), width, width,
                         terms, 2, of, 3),
              1)
        << name;
  }
}

/// Returns sum(dout * out) of the reference, in f64, after one input changed.
double objective(const Attention &a, const char *operand, int64_t index,
                 double change) {
  KernelCase test = makeCase(a, false), gradient = makeCase(a, true);
  test.set(operand, index, test.at(operand, index) + change);
  expectOk(test.run("reference"));
  double sum = 0;
  for (int64_t i = 0; i < a.tokens() * a.width(); ++i)
    sum += test.at("out", i) * gradient.at("dout", i);
  return sum;
}

class AttentionDerivative : public testing::TestWithParam<Attention> {};

INSTANTIATE_TEST_SUITE_P(
    All, AttentionDerivative,
    testing::Values(
        Attention{2, 9, 4, 2, 3, 5, 0, Segments::kPacked, F32},
        Attention{2, 9, 4, 2, 3, 5, 0, Segments::kPacked, F32, 0.8},
        Attention{1, 9, 4, 2, 3, 0, 0, Segments::kPacked, F32, 0.8, true}));

TEST_P(AttentionDerivative, IsThatOfTheReference) {
  const Attention a = GetParam();
  KernelCase gradient = makeGradient(a);
  expectOk(gradient.run("reference"));
  // The error of central differences is step^2 times a third derivative of
  // about 1, plus the f32 rounding errors of 216 outputs divided by the step.
  const double step = 0x1p-7;
  const double limit = step * step + 216 * 0x1p-24 / step;
  const char *pairs[][2] = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}};
  for (const auto &[input, output] : pairs)
    for (int64_t i = 0; i < int64_t(gradient.bytes(output) / 4); i += 5) {
      const double slope =
          (objective(a, input, i, step) - objective(a, input, i, -step)) /
          (2 * step);
      EXPECT_NEAR(gradient.at(output, i), slope, limit) << output << i;
    }
}

#ifdef _OPENMP
TEST(AttentionGrad, BitsDoNotDependOnThreads) {
  const Attention a = {2, 200, 4, 2, 32, 0, 0, Segments::kPacked, BF16};
  const int before = omp_get_max_threads();
  std::vector<std::vector<uint8_t>> results;
  for (int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    KernelCase test = makeGradient(a), forward = makeCase(a, false);
    expectOk(test.run("blocked"));
    expectOk(forward.run("blocked"));
    std::vector<uint8_t> bytes;
    for (const char *name : {"dq", "dk", "dv"})
      bytes.insert(bytes.end(), test.data(name),
                   test.data(name) + test.bytes(name));
    bytes.insert(bytes.end(), forward.data("out"),
                 forward.data("out") + forward.bytes("out"));
    results.push_back(bytes);
  }
  omp_set_num_threads(before);
  EXPECT_TRUE(results[0] == results[1]);
  EXPECT_TRUE(results[0] == results[2]);
}
#endif

} // namespace
} // namespace qlora
