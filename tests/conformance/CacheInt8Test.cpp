// SPDX-License-Identifier: MIT

// i8 caches: the codes and scales that cache_rows writes, and the error of
// cached_attention compared with f32 caches of the same keys and values.

#include "tests/conformance/KernelCase.h"

#include "runtime/Kernels/Math/CacheInt8.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype I32 = QLORA_DTYPE_I32;
constexpr qlora_dtype I8 = QLORA_DTYPE_I8;

/// Tokens at the positions 0, 1, ... of slot 1 of 3.
struct Text {
  int64_t tokens, entries, heads, dim, gap = 0;

  int64_t columns() const { return heads * dim; }
  int64_t ld() const { return columns() + gap; }
  int64_t rowOf(int64_t token) const { return entries + token; }
};

KernelCase rowsCase(const Text &t, qlora_dtype x, qlora_dtype cache) {
  KernelCase test("cache_rows",
                  {{"x", x},
                   {"slots", I32},
                   {"positions", I32},
                   {"segments", I32},
                   {"cache", cache}},
                  {{"rows", t.tokens},
                   {"columns", t.columns()},
                   {"slots", 3},
                   {"entries", t.entries},
                   {"heads", t.heads},
                   {"ldx", t.ld()}});
  for (int64_t i = 0; i < t.tokens; ++i) {
    test.set("slots", i, 1);
    test.set("positions", i, double(i));
    test.set("segments", i, 1);
  }
  return test;
}

/// The codes and the scale of a head in an i8 cache.
struct Head {
  const int8_t *codes;
  float scale;

  Head(KernelCase &test, const Text &t, int64_t token, int64_t head) {
    const auto *all = reinterpret_cast<const int8_t *>(test.data("cache"));
    const int64_t index = t.rowOf(token) * t.heads + head;
    codes = all + index * t.dim;
    std::memcpy(&scale, all + 3 * t.entries * t.columns() + 4 * index, 4);
  }
};

TEST(CacheInt8, RowsHaveTheErrorOfTheFormat) {
  const Text texts[] = {{5, 7, 2, 64},      {3, 3, 1, 4, 1}, {9, 20, 3, 36, 2},
                        {2, 2, 9, 128, 8}, {1, 1, 2, 700}};
  for (const std::string &row : rowsToTest("cache_rows"))
    for (const Text &t : texts)
      for (qlora_dtype x : {F32, BF16}) {
        SCOPED_TRACE(row);
        KernelCase test = rowsCase(t, x, I8);
        test.fill("x", t.tokens, t.columns(), t.ld(), 1, 300);
        expectOk(test.run(row));
        for (int64_t token = 0; token < t.tokens; ++token)
          for (int64_t head = 0; head < t.heads; ++head) {
            const auto at = [&](int64_t i) {
              return test.at("x", token * t.ld() + head * t.dim + i);
            };
            double absmax = 0;
            for (int64_t i = 0; i < t.dim; ++i)
              absmax = std::max(absmax, std::abs(at(i)));
            const Head got(test, t, token, head);
            EXPECT_EQ(got.scale, qlora_cache_scale(float(absmax)));
            for (int64_t i = 0; i < t.dim; ++i)
              ASSERT_NEAR(qlora_cache_number(got.codes[i], got.scale), at(i),
                          absmax * kCacheInt8Error);
          }
      }
}

TEST(CacheInt8, AllRowsHaveTheSameBits) {
  const Text t = {11, 13, 5, 48, 3};
  for (qlora_dtype x : {F32, BF16}) {
    std::vector<uint8_t> expected;
    for (const std::string &row : rowsToTest("cache_rows")) {
      KernelCase test = rowsCase(t, x, I8);
      test.fill("x", t.tokens, t.columns(), t.ld(), 3, 2);
      expectOk(test.run(row));
      const std::vector<uint8_t> got(test.data("cache"),
                                     test.data("cache") + test.bytes("cache"));
      EXPECT_TRUE(expected.empty() || expected == got) << row;
      expected = got;
    }
  }
}

TEST(CacheInt8, ZerosStayZeroAndOthersThatAreNotFiniteBecomeNaN) {
  const Text t = {4, 4, 1, 8};
  const double special[] = {0, std::nan(""),
                            std::numeric_limits<double>::infinity(), 0x1p-130};
  for (const std::string &row : rowsToTest("cache_rows")) {
    KernelCase test = rowsCase(t, F32, I8);
    for (int64_t token = 0; token < t.tokens; ++token)
      for (int64_t i = 0; i < t.dim; ++i)
        test.set("x", token * t.ld() + i, i == 3 ? special[token] : 0);
    expectOk(test.run(row));
    for (int64_t token = 0; token < t.tokens; ++token)
      for (int64_t i = 0; i < t.dim; ++i) {
        const Head head(test, t, token, 0);
        const float value = qlora_cache_number(head.codes[i], head.scale);
        if (token == 0 || token == 3)
          EXPECT_EQ(value, 0) << row;
        else
          EXPECT_TRUE(std::isnan(value)) << row;
      }
  }
}

TEST(CacheInt8, NeedsHeadsOfWholeScales) {
  const Text t = {1, 1, 2, 6};
  const KernelRow &row = *findKernelRow("cache_rows.cpu");
  EXPECT_EQ(row.reject(rowsCase(t, F32, F32).request), std::nullopt);
  KernelRequest request = rowsCase(t, F32, F32).request;
  request.dtypes[request.op->operandIndex("cache")] = I8;
  EXPECT_EQ(row.reject(request).value_or(""),
            "cache_rows needs heads of a multiple of 4 dimensions for an i8 "
            "cache, got 6");
  request.constants[request.op->constantIndex("heads")] = 5;
  EXPECT_EQ(row.reject(request).value_or(""),
            "heads must divide the columns, got 5");
}

/// Queries of a text's last token, with caches of `cache`.
KernelCase attend(const Text &t, int64_t group, qlora_dtype cache,
                  const std::string &row) {
  KernelCase test("cached_attention",
                  {{"q", F32},
                   {"keys", cache},
                   {"values", cache},
                   {"slots", I32},
                   {"positions", I32},
                   {"segments", I32},
                   {"out", F32}},
                  {{"batch", 1},
                   {"length", 1},
                   {"slots", 3},
                   {"entries", t.entries},
                   {"heads", t.heads * group},
                   {"kv_heads", t.heads},
                   {"dim", t.dim},
                   {"ldq", t.columns() * group},
                   {"ldo", t.columns() * group},
                   {"window", 0},
                   {"scale", bits(1 / std::sqrt(double(t.dim)))},
                   {"cap", bits(0)}});
  test.fill("q", 1, t.columns() * group, t.columns() * group, 7);
  test.set("slots", 0, 1);
  test.set("positions", 0, double(t.tokens - 1));
  test.set("segments", 0, 1);
  for (auto [name, seed] : {std::pair("keys", 1u), {"values", 2u}}) {
    KernelCase rows = rowsCase(t, F32, cache);
    rows.fill("x", t.tokens, t.columns(), t.ld(), seed);
    expectOk(rows.run("cpu"));
    std::copy_n(rows.data("cache"), rows.bytes("cache"), test.data(name));
  }
  expectOk(test.run(row));
  return test;
}

/// Keys and values are within 1. A key's error changes a score by at most d =
/// scale * |q|_1 * kCacheInt8Error, and softmax weights by the factor e^(2 d).
/// A mean of values has at most the error of a value.
TEST(CacheInt8, AttentionHasTheErrorOfTheFormat) {
  const Text texts[] = {{40, 64, 2, 64}, {300, 320, 1, 128}, {7, 9, 3, 20}};
  constexpr int64_t kGroup = 2;
  for (const std::string &row : rowsToTest("cached_attention"))
    for (const Text &t : texts) {
      SCOPED_TRACE(row);
      KernelCase exact = attend(t, kGroup, F32, row);
      KernelCase got = attend(t, kGroup, I8, row);
      double worst = 0;
      for (int64_t head = 0; head < t.heads * kGroup; ++head) {
        double length = 0;
        for (int64_t i = 0; i < t.dim; ++i)
          length += std::abs(exact.at("q", head * t.dim + i));
        const double d =
            length / std::sqrt(double(t.dim)) * kCacheInt8Error;
        const double limit = std::expm1(2 * d) + kCacheInt8Error + 1e-5;
        for (int64_t i = head * t.dim; i < (head + 1) * t.dim; ++i)
          worst = std::max(worst,
                           std::abs(got.at("out", i) - exact.at("out", i)) /
                               limit);
      }
      EXPECT_LE(worst, 1);
      EXPECT_GT(worst, 0);
      RecordProperty("error_relative_to_bound", std::to_string(worst));
    }
}

} // namespace
} // namespace qlora
