// SPDX-License-Identifier: MIT

// adapter_matmul: compares all implementations with the reference, and the bits
// of a row alone and among rows with other adapters. Weights of adapters that
// no row has are NaN.

#include "tests/conformance/KernelCase.h"

#include <cstring>
#include <set>

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype I32 = QLORA_DTYPE_I32;

/// kMixed includes rows without an adapter, and ids out of range.
enum class Ids { kMixed, kNone, kEqual };

struct Product {
  int64_t m, n, k, adapters;
  qlora_dtype x = F32, y = F32;
  double beta = 0;
  Ids ids = Ids::kMixed;
  int64_t gap = 0;

  int64_t ldx() const { return k + gap; }
  int64_t ldy() const { return n + 2 * gap; }
  int64_t idOf(int64_t row) const {
    const int64_t mixed[] = {adapters - 1, -1, 0, adapters, row % adapters, -7};
    return ids == Ids::kNone    ? -1
           : ids == Ids::kEqual ? adapters / 2
                                : mixed[row % 6];
  }
  bool hasAdapter(int64_t row) const {
    return idOf(row) >= 0 && idOf(row) < adapters;
  }
};

std::ostream &operator<<(std::ostream &out, const Product &p) {
  return out << p.m << "x" << p.n << "x" << p.k << " of " << p.adapters << " "
             << dtypeName(p.x) << " " << dtypeName(p.y) << " beta " << p.beta
             << " ids " << int(p.ids) << " gap " << p.gap;
}

const Product kCases[] = {
    {1, 1, 1, 1},
    {7, 5, 3, 2, F32, F32, 1, Ids::kMixed, 1},
    {6, 300, 8, 3, BF16, BF16, 1, Ids::kMixed, 5},
    {13, 16, 129, 4, BF16, BF16},
    {3, 257, 16, 2, F32, BF16, 0.5, Ids::kMixed, 3},
    {2, 70, 33, 9, BF16, F32, 1, Ids::kEqual, 2},
    {8, 24, 1023, 5, F32, F32, 0, Ids::kMixed, 7},
    // From 1024 on, a block of CUDA computes one output.
    {9, 11, 1024, 3, BF16, BF16, 0, Ids::kMixed},
    {4, 8, 2500, 2, F32, F32, 1, Ids::kMixed, 1},
    {5, 9, 64, 2, F32, F32, 0, Ids::kNone},
    {5, 9, 2000, 2, BF16, F32, 1, Ids::kNone, 1},
};

/// Fills rows [first, first + p.m) of `of`, which has more rows.
KernelCase makeCase(const Product &p, const Product &of, int64_t first) {
  KernelCase test("adapter_matmul",
                  {{"x", p.x}, {"w", F32}, {"adapter", I32}, {"y", p.y}},
                  {{"m", p.m},
                   {"n", p.n},
                   {"k", p.k},
                   {"adapters", p.adapters},
                   {"ldx", p.ldx()},
                   {"ldy", p.ldy()},
                   {"beta", bits(p.beta)}});
  std::set<int64_t> used;
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int64_t row = 0; row < of.m; ++row) {
    const bool isOurs = row >= first && row < first + p.m;
    for (int64_t i = 0; i < p.k; ++i)
      if (const double value = uniform(generator); isOurs)
        test.set("x", (row - first) * p.ldx() + i, value);
    for (int64_t j = 0; j < p.n; ++j)
      if (const double value = uniform(generator); isOurs && p.beta != 0)
        test.set("y", (row - first) * p.ldy() + j, value);
    if (!isOurs)
      continue;
    test.set("adapter", row - first, double(of.idOf(row)));
    if (of.hasAdapter(row))
      used.insert(of.idOf(row));
  }
  for (int64_t j = 0; j < p.n; ++j)
    for (int64_t adapter = 0; adapter < p.adapters; ++adapter)
      for (int64_t i = 0; i < p.k; ++i)
        if (const double value = uniform(generator); used.contains(adapter))
          test.set("w", (j * p.adapters + adapter) * p.k + i, value);
  return test;
}

TEST(AdapterMatmul, AgreesWithTheReference) {
  for (const Product &p : kCases) {
    SCOPED_TRACE(p);
    KernelCase expected = makeCase(p, p, 0);
    expectOk(expected.run("reference"));
    for (const std::string &row : rowsToTest("adapter_matmul")) {
      SCOPED_TRACE(row);
      KernelCase got = makeCase(p, p, 0);
      expectOk(got.run(row));
      for (int64_t i = 0; i < p.m; ++i)
        for (int64_t j = 0; j < p.n; ++j) {
          const double exact = expected.at("y", i * p.ldy() + j);
          ASSERT_NEAR(got.at("y", i * p.ldy() + j), exact,
                      tolerance(p.y, exact, p.k + 1))
              << "row " << i << ", output " << j;
        }
      EXPECT_TRUE(got.gapsHold("y", p.m, p.n, p.ldy()));
    }
  }
}

TEST(AdapterMatmul, RowsWithoutAdapterKeepTheirBits) {
  for (const std::string &row : allRowsToTest("adapter_matmul")) {
    SCOPED_TRACE(row);
    const Product p = {4, 40, 12, 2, BF16, BF16, 1, Ids::kNone, 1};
    KernelCase before = makeCase(p, p, 0), test = makeCase(p, p, 0);
    expectOk(test.run(row));
    EXPECT_EQ(std::memcmp(before.data("y"), test.data("y"), test.bytes("y")),
              0);
  }
}

TEST(AdapterMatmul, BitsOfARowDoNotDependOnOtherRows) {
  for (const Product &p : kCases) {
    SCOPED_TRACE(p);
    for (const std::string &row : rowsToTest("adapter_matmul")) {
      SCOPED_TRACE(row);
      KernelCase all = makeCase(p, p, 0);
      expectOk(all.run(row));
      Product one = p;
      one.m = 1;
      for (int64_t i = 0; i < p.m; ++i) {
        KernelCase alone = makeCase(one, p, i);
        expectOk(alone.run(row));
        const int64_t bytes = dtypeBits(p.y) / 8;
        EXPECT_EQ(std::memcmp(all.data("y") + i * p.ldy() * bytes,
                              alone.data("y"),
                              static_cast<size_t>(p.n * bytes)),
                  0)
            << "row " << i;
      }
    }
  }
}

} // namespace
} // namespace qlora
