// SPDX-License-Identifier: MIT

// Compares grouped_matmul and grouped_weight_grad with sums in f64: odd shapes,
// and groups without rows.

#include "tests/conformance/KernelCase.h"

#include <numeric>

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype I32 = QLORA_DTYPE_I32;
constexpr qlora_dtype NF4 = QLORA_DTYPE_NF4;

struct Grouped {
  std::vector<int64_t> counts; ///< rows of each group
  int64_t out, in;             ///< rows and columns of each group's matrix
  qlora_dtype a, w;
  bool isForward, isLast;
  double alpha, beta;
  int64_t gap;
  int64_t rest = 0; ///< rows after all groups

  int64_t m() const {
    return std::accumulate(counts.begin(), counts.end(), rest);
  }
  int64_t groups() const { return int64_t(counts.size()); }
};

void fillOffsets(KernelCase &test, const Grouped &g) {
  int64_t offset = 0;
  test.set("offsets", 0, 0);
  for (int64_t i = 0; i < g.groups(); ++i)
    test.set("offsets", i + 1, double(offset += g.counts[i]));
}

/// Elements per quantization block in these tests.
int64_t blockOf(qlora_dtype w) {
  return w == NF4 ? 64 : storedFormat(w) ? 32 : 0;
}

double weightAt(KernelCase &test, const Grouped &g, int64_t group, int64_t row,
                int64_t column) {
  const int64_t index = g.isLast
                            ? (row * g.in + column) * g.groups() + group
                            : (group * g.out + row) * g.in + column;
  if (!storedFormat(g.w))
    return test.at("w", index);
  const auto layout = StoredLayout::of(g.w, g.groups() * g.out * g.in,
                                       blockOf(g.w), true);
  return StoredTensor::of(layout, test.data("w")).element(index);
}

double roundedTo(qlora_dtype type, double value) {
  uint32_t storage = 0;
  storeNumber(type, &storage, 0, value);
  return loadNumber(type, &storage, 0);
}

void checkGrouped(const Grouped &g, const std::string &implementation,
                  bool isExpected = false) {
  const int64_t n = g.isForward ? g.out : g.in, k = g.isForward ? g.in : g.out;
  const int64_t rows = g.isLast ? g.out : g.groups() * g.out;
  const int64_t columns = g.isLast ? g.in * g.groups() : g.in;
  KernelCase test(
      "grouped_matmul",
      {{"a", g.a}, {"w", g.w}, {"offsets", I32}, {"c", g.a}},
      {{"m", g.m()}, {"groups", g.groups()}, {"rows", rows},
       {"columns", columns}, {"lda", k + g.gap}, {"ldc", n + g.gap},
       {"transpose_w", g.isForward}, {"groups_last", g.isLast},
       {"block", blockOf(g.w)}, {"double_quant", blockOf(g.w) != 0},
       {"panel_columns", 32}, {"alpha", bits(g.alpha)},
       {"beta", bits(g.beta)}, {"shared", 1}});
  test.fill("a", g.m(), k, k + g.gap, 1);
  if (g.beta != 0)
    test.fill("c", g.m(), n, n + g.gap, 3);
  if (storedFormat(g.w))
    fillStored(test.data("w"),
               StoredLayout::of(g.w, rows * columns, blockOf(g.w), true), 5);
  else
    test.fill("w", rows, columns, columns, 5, 0.2);
  ASSERT_TRUE(!isExpected || test.isTaken(implementation));
  if (!test.isTaken(implementation))
    return;
  fillOffsets(test, g);
  std::vector<double> exact;
  int64_t row = 0;
  for (int64_t group = 0; group < g.groups(); ++group)
    for (int64_t i = 0; i < g.counts[group]; ++i, ++row)
      for (int64_t column = 0; column < n; ++column) {
        double sum = 0;
        for (int64_t at = 0; at < k; ++at)
          sum += test.at("a", row * (k + g.gap) + at) *
                 roundedTo(g.a, g.isForward
                                    ? weightAt(test, g, group, column, at)
                                    : weightAt(test, g, group, at, column));
        const double before =
            g.beta ? g.beta * test.at("c", row * (n + g.gap) + column) : 0;
        exact.push_back(g.alpha * sum + before);
      }
  for (; row < g.m(); ++row)
    for (int64_t column = 0; column < n; ++column)
      exact.push_back(
          g.beta ? g.beta * test.at("c", row * (n + g.gap) + column) : 0);
  expectOk(test.run(implementation));
  EXPECT_TRUE(test.gapsHold("c", g.m(), n, n + g.gap));
  for (int64_t i = 0; i < g.m(); ++i)
    for (int64_t column = 0; column < n; ++column)
      ASSERT_NEAR(test.at("c", i * (n + g.gap) + column), exact[i * n + column],
                  tolerance(g.a, exact[i * n + column], k + 1, 2))
          << implementation << " row " << i << " column " << column;
}

TEST(GroupedMatmul, MultipliesEachGroupWithItsMatrix) {
  const std::vector<int64_t> counts[] = {
      {1}, {5, 0, 3}, {0, 0, 33, 1, 2}, {40, 170, 9}};
  const int64_t shapes[][2] = {{1, 1}, {33, 21}, {70, 64}};
  int number = 0;
  for (const auto &count : counts)
    for (const auto &shape : shapes)
      for (const auto &type : {std::pair(F32, F32), std::pair(F32, NF4),
                               std::pair(F32, BF16), std::pair(BF16, BF16),
                               std::pair(BF16, NF4), std::pair(BF16, F32),
                               std::pair(F32, QLORA_DTYPE_MXFP4),
                               std::pair(BF16, QLORA_DTYPE_MXFP4)})
        for (bool isForward : {false, true}) {
          ++number;
          const bool isLast = !storedFormat(type.second) && number % 3 == 0;
          for (const std::string &row : rowsToTest("grouped_matmul"))
            checkGrouped({count, shape[0], shape[1], type.first, type.second,
                          isForward, isLast, number % 4 ? 1.0 : 0.5,
                          number % 5 == 0 ? 1.0 : 0.0, number % 7 < 3 ? 3 : 0,
                          number % 2 ? 0 : 37},
                         row);
        }
}

/// Full and partial tiles of 64 rows and 128 columns, and full and partial
/// iterations of 64 elements.
TEST(GroupedMatmul, MultipliesOnTensorCores) {
  const std::vector<int64_t> counts[] = {
      {40, 170, 9}, {0, 64, 65, 0, 1}, std::vector<int64_t>(70, 2)};
  const int64_t shapes[][2] = {{8, 8}, {200, 72}, {128, 64}, {136, 200}};
  for (const auto &row : rowsToTest("grouped_matmul"))
    if (row == "tensor")
      for (const auto &count : counts)
        for (const auto &shape : shapes)
          for (bool isForward : {false, true}) {
            const bool isOdd = (shape[0] + int64_t(count.size())) % 3 == 0;
            checkGrouped({count, shape[0], shape[1], BF16, isOdd ? NF4 : BF16,
                          isForward, false, 0.5, isOdd ? 1.0 : 0.0,
                          isOdd ? 0 : 8, 37},
                         row, /*isExpected=*/true);
          }
}

TEST(GroupedMatmul, RefusesOffsetsThatDoNotRise) {
  KernelCase test("grouped_matmul",
                  {{"a", F32}, {"w", F32}, {"offsets", I32}, {"c", F32}},
                  {{"m", 4}, {"groups", 2}, {"rows", 2}, {"columns", 1},
                   {"lda", 1}, {"ldc", 1}, {"transpose_w", 1},
                   {"groups_last", 0}, {"block", 0}, {"double_quant", 0},
                   {"panel_columns", 1}, {"alpha", bits(1)},
                   {"beta", bits(0)}, {"shared", 1}});
  for (const auto &[i, offset] : {std::pair(0, 0), {1, 5}, {2, 4}})
    test.set("offsets", i, offset);
  EXPECT_EQ(test.run("onednn").message(),
            "grouped_matmul: offsets do not rise from 0 to 4");
}

void checkGroupedGrad(const Grouped &g, const std::string &implementation) {
  KernelCase test("grouped_weight_grad",
                  {{"dy", g.a}, {"x", g.w}, {"offsets", I32}, {"dw", F32}},
                  {{"m", g.m()}, {"groups", g.groups()}, {"rows", g.out},
                   {"columns", g.in}, {"lddy", g.out + g.gap},
                   {"ldx", g.in + g.gap}, {"groups_last", g.isLast},
                   {"alpha", bits(g.alpha)}, {"beta", bits(g.beta)},
                   {"shared", 2}});
  test.fill("dy", g.m(), g.out, g.out + g.gap, 1);
  test.fill("x", g.m(), g.in, g.in + g.gap, 2);
  const int64_t size = g.groups() * g.out * g.in;
  if (g.beta != 0)
    test.fill("dw", 1, size, size, 3);
  fillOffsets(test, g);
  std::vector<double> before;
  for (int64_t i = 0; i < size; ++i)
    before.push_back(g.beta ? g.beta * test.at("dw", i) : 0);
  expectOk(test.run(implementation));
  for (int64_t group = 0; group < g.groups(); ++group)
    for (int64_t row = 0; row < g.out; ++row)
      for (int64_t column = 0; column < g.in; ++column) {
        double sum = 0;
        for (int64_t p = int64_t(test.at("offsets", group));
             p < int64_t(test.at("offsets", group + 1)); ++p)
          sum += test.at("dy", p * (g.out + g.gap) + row) *
                 test.at("x", p * (g.in + g.gap) + column);
        const int64_t index =
            g.isLast ? (row * g.in + column) * g.groups() + group
                     : (group * g.out + row) * g.in + column;
        const double exact = g.alpha * sum + before[index];
        ASSERT_NEAR(test.at("dw", index), exact,
                    tolerance(F32, exact, g.m() + 1));
      }
}

TEST(GroupedWeightGrad, SumsOverTheRowsOfEachGroup) {
  int number = 0;
  for (const std::vector<int64_t> &counts :
       {std::vector<int64_t>{1}, {5, 0, 3}, {40, 170, 9}})
    for (const auto &type : {std::pair(F32, F32), std::pair(BF16, BF16),
                             std::pair(F32, BF16), std::pair(BF16, F32)})
      for (bool isLast : {false, true}) {
        ++number;
        for (const std::string &row : rowsToTest("grouped_weight_grad"))
          checkGroupedGrad({counts, 33, 21, type.first, type.second, true,
                            isLast, 0.5, number % 2 ? 0.0 : 1.0, number % 3},
                           row);
      }
}

} // namespace
} // namespace qlora
