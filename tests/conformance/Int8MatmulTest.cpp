// SPDX-License-Identifier: MIT

// Compares int8_matmul with its reference. Without outlier columns, results are
// equal bit for bit, because sums of integers are exact.

#include "tests/conformance/KernelCase.h"

#include <cstring>

#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;

struct Product {
  int64_t m, rows, columns;
  qlora_dtype a, c;
  double threshold, alpha, beta;
  int64_t gap;
};

std::ostream &operator<<(std::ostream &out, const Product &p) {
  return out << p.m << "x" << p.rows << "x" << p.columns << " "
             << dtypeName(p.a) << "->" << dtypeName(p.c) << " threshold "
             << p.threshold << " alpha " << p.alpha << " beta " << p.beta;
}

/// About every thirteenth column of `a` has outliers above 2. Row 0 is zeros.
KernelCase makeCase(const Product &p) {
  KernelCase test(
      "int8_matmul", {{"a", p.a}, {"w", QLORA_DTYPE_LLM_INT8}, {"c", p.c}},
      {{"m", p.m},
       {"rows", p.rows},
       {"columns", p.columns},
       {"lda", p.columns + p.gap},
       {"ldc", p.rows + p.gap},
       {"block", p.columns},
       {"double_quant", 0},
       {"threshold", bits(p.threshold)},
       {"alpha", bits(p.alpha)},
       {"beta", bits(p.beta)}});
  fillStored(test.data("w"),
             StoredLayout::of(QLORA_DTYPE_LLM_INT8, p.rows * p.columns,
                              p.columns, false),
             5);
  test.fill("a", p.m, p.columns, p.columns + p.gap, 1, 1.9);
  for (int64_t column = 0; column < p.columns; column += 13)
    test.set("a", (column % p.m) * (p.columns + p.gap) + column, -2.5);
  for (int64_t column = 0; p.m > 2 && column < p.columns; ++column)
    test.set("a", column, 0);
  if (p.beta != 0)
    test.fill("c", p.m, p.rows, p.rows + p.gap, 3);
  return test;
}

void check(const Product &p, const std::string &implementation) {
  SCOPED_TRACE(p);
  KernelCase expected = makeCase(p), got = makeCase(p);
  expectOk(expected.run("reference"));
  expectOk(got.run(implementation));
  EXPECT_TRUE(got.gapsHold("c", p.m, p.rows, p.rows + p.gap));
  // Number of outlier columns, which are summed in f32: every thirteenth
  // column, or nearly all for a threshold of 0.01. An outlier is at most 2.5 in
  // magnitude, a weight at most 128 * 0.2 / 127.
  const double outliers = p.threshold == 0   ? 0
                          : p.threshold < 1 ? double(p.columns)
                                            : double(p.columns) / 13 + 1;
  const bool isExact = outliers == 0 && p.alpha == 1 && p.beta == 0;
  double worst = 0;
  for (int64_t row = 0; row < p.m; ++row)
    for (int64_t column = 0; column < p.rows; ++column) {
      const int64_t i = row * (p.rows + p.gap) + column;
      const double exact = expected.at("c", i);
      const double error = std::abs(got.at("c", i) - exact);
      // The result is the matmul plus beta * c. Both terms can be larger than
      // the result, hence `+ 1`.
      const double limit =
          isExact ? 0
                  : tolerance(p.c, exact, int64_t(outliers) + 1, 0.5) +
                        tolerance(F32, std::abs(exact) + 1, 2);
      worst = std::max(worst, std::isnan(error) ? 1e30 : error - limit);
    }
  EXPECT_LE(worst, 0.0);
}

TEST(Int8Matmul, AgreesWithTheReferenceOnOddShapes) {
  const int64_t shapes[][3] = {{1, 1, 1},   {3, 5, 7},     {17, 33, 61},
                               {5, 70, 33}, {20, 96, 128}, {35, 67, 130},
                               {2, 9, 600}};
  int number = 0;
  for (const auto &shape : shapes)
    for (qlora_dtype a : {F32, BF16})
      for (qlora_dtype c : {F32, BF16})
        for (double threshold : {0.0, 2.0, 0.01}) {
          ++number;
          const Product p = {shape[0],
                             shape[1],
                             shape[2],
                             a,
                             c,
                             threshold,
                             number % 5 == 0 ? 0.5 : 1.0,
                             number % 4 == 0 ? 1.0 : 0.0,
                             number % 3 == 0 ? 5 : 0};
          for (const std::string &row : rowsToTest("int8_matmul"))
            check(p, row);
        }
}

/// A NaN, or an infinity that is not an outlier, makes all results of its row
/// NaN, and no results of other rows.
TEST(Int8Matmul, KeepsNaN) {
  for (const std::string &row : allRowsToTest("int8_matmul"))
    for (double threshold : {0.0, 2.0}) {
      KernelCase test = makeCase({5, 6, 40, F32, F32, threshold, 1, 0, 0});
      test.set("a", 1 * 40 + 3, std::nan(""));
      test.set("a", 3 * 40 + 7, 1e30);
      expectOk(test.run(row));
      for (int64_t i = 0; i < 5 * 6; ++i)
        EXPECT_EQ(!std::isfinite(test.at("c", i)),
                  i / 6 == 1 || (threshold == 0 && i / 6 == 3))
            << row << " " << threshold << " " << i;
    }
}

TEST(Int8Matmul, BitsDoNotDependOnThreads) {
  const Product p = {35, 67, 130, F32, F32, 2.0, 1, 0, 0};
  KernelCase one = makeCase(p), many = makeCase(p);
  {
    const ScopedThreads threads(1);
    expectOk(one.run("dots"));
  }
  const ScopedThreads threads(5);
  expectOk(many.run("dots"));
  EXPECT_EQ(std::memcmp(one.data("c"), many.data("c"), one.bytes("c")), 0);
}

TEST(Int8Matmul, RefusesWhatHasNoMeaning) {
  const KernelRow *row = findKernelRow("int8_matmul.dots");
  const auto reason = [&](const char *name, int64_t value) {
    KernelCase test = makeCase({3, 4, 32, F32, F32, 6.0, 1, 0, 0});
    test.request.constants[test.request.op->constantIndex(name)] = value;
    return row->reject(test.request).value_or("");
  };
  EXPECT_EQ(reason("block", 16), "block must be the columns, got 16");
  EXPECT_EQ(reason("columns", 1 << 18),
            "columns must be at most 131072, got 262144");
  EXPECT_EQ(reason("threshold", bits(-1.0)),
            "threshold must be neither negative nor infinite");
}

} // namespace
} // namespace qlora
