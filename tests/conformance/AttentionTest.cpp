// SPDX-License-Identifier: MIT

// attention and attention_grad: the reference gradient against finite
// differences of the reference, and the blocked rows against both.

#include "tests/conformance/KernelCase.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;

enum class Segments { kNone, kPacked, kPadded };

struct Attention {
  int64_t batch, length, heads, keyHeads, dim, window, gap;
  Segments segments;
  qlora_dtype dtype;

  double scale() const { return 1 / std::sqrt(double(dim)); }
  int64_t tokens() const { return batch * length; }
  int64_t width() const { return heads * dim; }
  int64_t keyWidth() const { return keyHeads * dim; }
};

std::ostream &operator<<(std::ostream &out, const Attention &a) {
  return out << "B" << a.batch << " T" << a.length << " H" << a.heads << "/"
             << a.keyHeads << " D" << a.dim << " window " << a.window
             << " segments " << int(a.segments) << " " << dtypeName(a.dtype);
}

/// Three segments of odd lengths, and padding at the end where asked.
int32_t segmentOf(const Attention &a, int64_t batch, int64_t token) {
  const int64_t position = token + 3 * batch;
  if (a.segments == Segments::kPadded && token >= a.length - a.length / 5 - 1)
    return 0;
  return position < a.length / 3 ? 1 : position < a.length * 3 / 4 ? 2 : 3;
}

KernelCase makeCase(const Attention &a, bool isGradient) {
  KernelCase::Types types = {{"q", a.dtype},
                             {"k", a.dtype},
                             {"v", a.dtype},
                             {"out", a.dtype},
                             {"lse", F32}};
  if (a.segments != Segments::kNone)
    types["segments"] = QLORA_DTYPE_I32;
  if (isGradient)
    for (const char *name : {"dout", "dq", "dk", "dv"})
      types[name] = a.dtype;
  KernelCase test(isGradient ? "attention_grad" : "attention", types,
                  {{"batch", a.batch},
                   {"length", a.length},
                   {"heads", a.heads},
                   {"kv_heads", a.keyHeads},
                   {"dim", a.dim},
                   {"ldq", a.width() + a.gap},
                   {"ldk", a.keyWidth() + a.gap},
                   {"ldv", a.keyWidth() + a.gap},
                   {"ldo", a.width() + a.gap},
                   {"lddo", a.width() + a.gap},
                   {"lddq", a.width() + a.gap},
                   {"lddk", a.keyWidth() + a.gap},
                   {"lddv", a.keyWidth() + a.gap},
                   {"window", a.window},
                   {"scale", bits(a.scale())},
                   {"slots", 3}});
  test.fill("q", a.tokens(), a.width(), a.width() + a.gap, 1);
  test.fill("k", a.tokens(), a.keyWidth(), a.keyWidth() + a.gap, 2);
  test.fill("v", a.tokens(), a.keyWidth(), a.keyWidth() + a.gap, 3);
  if (isGradient)
    test.fill("dout", a.tokens(), a.width(), a.width() + a.gap, 4);
  for (int64_t i = 0; a.segments != Segments::kNone && i < a.tokens(); ++i)
    test.set("segments", i, segmentOf(a, i / a.length, i % a.length));
  return test;
}

/// Runs the reference forward and hands out and lse to the gradient.
KernelCase makeGradient(const Attention &a) {
  KernelCase forward = makeCase(a, false), gradient = makeCase(a, true);
  expectOk(forward.run("reference"));
  for (const char *name : {"out", "lse"})
    std::copy_n(forward.data(name), forward.bytes(name), gradient.data(name));
  return gradient;
}

/// Worst error of a strided result, in tolerances.
double worstError(KernelCase &expected, KernelCase &got, const char *operand,
                  int64_t rows, int64_t columns, int64_t ld, int64_t terms,
                  double magnitude) {
  double worst = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) {
      const double exact = expected.at(operand, row * ld + column);
      const double error =
          std::abs(got.at(operand, row * ld + column) - exact) /
          tolerance(got.dtype(operand), exact, terms, magnitude);
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
};

TEST(Attention, AgreesWithTheReference) {
  for (const Attention &a : kCases) {
    SCOPED_TRACE(a);
    KernelCase expected = makeCase(a, false);
    expectOk(expected.run("reference"));
    for (const std::string &row : rowsToTest("attention")) {
      SCOPED_TRACE(row);
      KernelCase got = makeCase(a, false);
      expectOk(got.run(row));
      // Errors of the scores, sums of dim products, pass to the output.
      const int64_t terms = a.dim + a.length;
      EXPECT_LE(worstError(expected, got, "out", a.tokens(), a.width(),
                           a.width() + a.gap, terms, 1),
                1);
      EXPECT_LE(worstError(expected, got, "lse", a.batch * a.heads, a.length,
                           a.length, terms, 1),
                1);
    }
  }
}

TEST(Attention, PaddingGivesZeroAndNoGradient) {
  const Attention a = {1, 50, 2, 1, 8, 0, 0, Segments::kPadded, F32};
  for (const std::string &row : rowsToTest("attention")) {
    SCOPED_TRACE(row);
    KernelCase forward = makeCase(a, false);
    expectOk(forward.run(row));
    KernelCase gradient = makeGradient(a);
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
}

TEST(Attention, WindowOfOneCopiesTheValues) {
  const Attention a = {1, 20, 2, 1, 4, 1, 0, Segments::kNone, F32};
  for (const std::string &row : rowsToTest("attention")) {
    SCOPED_TRACE(row);
    KernelCase test = makeCase(a, false);
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
    for (const std::string &row : rowsToTest("attention_grad")) {
      SCOPED_TRACE(row);
      KernelCase got = makeGradient(a);
      expectOk(got.run(row));
      const int64_t terms = 2 * a.dim + a.length * a.heads / a.keyHeads;
      EXPECT_LE(worstError(expected, got, "dq", a.tokens(), a.width(),
                           a.width() + a.gap, terms, 2),
                1);
      for (const char *name : {"dk", "dv"})
        EXPECT_LE(worstError(expected, got, name, a.tokens(), a.keyWidth(),
                             a.keyWidth() + a.gap, terms, 2),
                  1)
            << name;
    }
  }
}

/// sum(dout * out) of the reference, in f64, for one changed input.
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

TEST(AttentionGrad, ReferenceIsTheDerivativeOfTheReference) {
  const Attention a = {2, 9, 4, 2, 3, 5, 0, Segments::kPacked, F32};
  KernelCase gradient = makeGradient(a);
  expectOk(gradient.run("reference"));
  // Central differences: the error is step^2 times a third derivative of
  // about 1, and the f32 rounding of 216 outputs over the step.
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
