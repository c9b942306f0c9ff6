// SPDX-License-Identifier: MIT

// embedding, column_sum, accumulate, copy_rows, clip_norm and length. The tests
// compare implementations with sums in f64, because some have no reference.

#include "tests/conformance/KernelCase.h"

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype F16 = QLORA_DTYPE_F16;
constexpr qlora_dtype I32 = QLORA_DTYPE_I32;

double rounded(qlora_dtype dtype, double value) {
  uint32_t storage = 0;
  storeNumber(dtype, &storage, 0, value);
  return loadNumber(dtype, &storage, 0);
}

KernelCase makeEmbedding(qlora_dtype w, qlora_dtype out, int64_t columns) {
  KernelCase test(
      "embedding", {{"ids", I32}, {"w", w}, {"out", out}},
      {{"rows", 9},
       {"columns", columns},
       {"vocab", 11},
       {"ldo", 64},
       {"turned", 0},
       {"piece", 0}});
  test.fill("w", 11, columns, columns, 1);
  for (int64_t row = 0; row < 9; ++row)
    test.set("ids", row, double(row * 7 % 11));
  return test;
}

/// Rows that begin at any element. Rows that begin at multiples of 16 bytes and
/// end with a partial 16-byte group.
TEST(Embedding, GathersRows) {
  for (const std::string &implementation : allRowsToTest("embedding"))
    for (qlora_dtype w : {F32, BF16, F16})
      for (qlora_dtype out : {F32, BF16})
        for (int64_t columns : {37, 48, 52}) {
          KernelCase test = makeEmbedding(w, out, columns);
          expectOk(test.run(implementation));
          EXPECT_TRUE(test.gapsHold("out", 9, columns, 64));
          for (int64_t row = 0; row < 9; ++row)
            for (int64_t i = 0; i < columns; ++i)
              ASSERT_EQ(
                  test.at("out", row * 64 + i),
                  rounded(out, test.at("w", row * 7 % 11 * columns + i)));
        }
}

/// Gathers columns, as for matrix A of an embedding's adapter, which has one
/// column per token id.
TEST(Embedding, GathersColumns) {
  for (const std::string &implementation : allRowsToTest("embedding"))
    for (qlora_dtype w : {F32, BF16, F16})
      for (qlora_dtype out : {F32, BF16})
        for (int64_t columns : {1, 13, 300}) {
          KernelCase test("embedding", {{"ids", I32}, {"w", w}, {"out", out}},
                          {{"rows", 9},
                           {"columns", columns},
                           {"vocab", 11},
                           {"ldo", 304},
                           {"turned", 1},
                           {"piece", 0}});
          test.fill("w", columns, 11, 11, 1);
          for (int64_t row = 0; row < 9; ++row)
            test.set("ids", row, double(row * 7 % 11));
          expectOk(test.run(implementation));
          EXPECT_TRUE(test.gapsHold("out", 9, columns, 304));
          for (int64_t row = 0; row < 9; ++row)
            for (int64_t i = 0; i < columns; ++i)
              ASSERT_EQ(test.at("out", row * 304 + i),
                        rounded(out, test.at("w", i * 11 + row * 7 % 11)));
        }
}

/// Checks a vocabulary shard: ids [shard * 4, shard * 4 + 4) of 11. Each value
/// of the table encodes its id and column.
void checkPiece(const std::string &implementation, qlora_dtype w,
                int64_t isTransposed, uint32_t shard) {
  constexpr int64_t kColumns = 19;
  KernelCase test("embedding", {{"ids", I32}, {"w", w}, {"out", BF16}},
                  {{"rows", 33},
                   {"columns", kColumns},
                   {"vocab", 11},
                   {"ldo", 20},
                   {"turned", isTransposed},
                   {"piece", 4}});
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t c = 0; c < kColumns; ++c)
      test.set("w", isTransposed ? c * 4 + i : i * kColumns + c,
               double(i * kColumns + c + 1));
  for (int64_t row = 0; row < 33; ++row)
    test.set("ids", row, double(row * 7 % 11));
  qlora_step_block step = {};
  step.shard = shard;
  expectOk(test.run(implementation, nullptr, &step));
  EXPECT_TRUE(test.gapsHold("out", 33, kColumns, 20));
  for (int64_t row = 0; row < 33; ++row)
    for (int64_t c = 0; c < kColumns; ++c) {
      const int64_t i = row * 7 % 11 - 4 * int64_t(shard);
      const bool isHere = i >= 0 && i < 4;
      ASSERT_EQ(test.at("out", row * 20 + c),
                isHere ? double(i * kColumns + c + 1) : 0)
          << row;
    }
}

TEST(Embedding, GathersRowsOfThePieceAndZeros) {
  for (const std::string &implementation : allRowsToTest("embedding"))
    for (qlora_dtype w : {F32, BF16, F16})
      for (int64_t isTransposed : {0, 1})
        for (uint32_t shard : {0u, 1u, 2u, 3u})
          checkPiece(implementation, w, isTransposed, shard);
}

TEST(Embedding, NamesTheRowOfAnImpossibleId) {
  KernelCase test = makeEmbedding(F32, F32, 37);
  test.set("ids", 5, 11);
  const Status status = test.run("cpu");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "embedding: row 5 has token id 11, outside of "
                              "the vocabulary of 11");
}

/// Checks the gradient of an embedding with 3 rows, whose tokens alternate
/// between ids 1 and 2.
void checkEmbeddingGrad(const std::string &implementation, qlora_dtype dout,
                        bool isTransposed, int64_t padding) {
  KernelCase test("embedding_grad", {{"ids", I32}, {"dout", dout}, {"dw", F32}},
                  {{"rows", 50},
                   {"columns", 133},
                   {"vocab", 3},
                   {"lddo", 135},
                   {"turned", isTransposed},
                   {"padding", padding}});
  test.fill("dout", 50, 133, 135, 1);
  test.fill("dw", 1, 3 * 133, 3 * 133, 2);
  for (int64_t row = 0; row < 50; ++row)
    test.set("ids", row, row % 2 ? 1 : 2);
  std::vector<double> exact;
  for (int64_t i = 0; i < 3 * 133; ++i)
    exact.push_back(test.at("dw", i));
  for (int64_t row = 0; row < 50; ++row)
    for (int64_t i = 0; i < 133; ++i)
      if (const int64_t id = row % 2 ? 1 : 2; id != padding)
        exact[isTransposed ? i * 3 + id : id * 133 + i] +=
            test.at("dout", row * 135 + i);
  expectOk(test.run(implementation));
  for (int64_t i = 0; i < 3 * 133; ++i)
    ASSERT_NEAR(test.at("dw", i), exact[i], tolerance(F32, exact[i], 26));
}

TEST(EmbeddingGrad, AddsRowsThatShareAnId) {
  for (const std::string &implementation : allRowsToTest("embedding_grad"))
    for (qlora_dtype dout : {F32, BF16})
      for (bool isTransposed : {false, true})
        for (int64_t padding : {-1, 2})
          checkEmbeddingGrad(implementation, dout, isTransposed, padding);
}

TEST(ColumnSum, AddsToTheOldSum) {
  for (const std::string &implementation : allRowsToTest("column_sum"))
    for (qlora_dtype x : {F32, BF16})
      for (int64_t rows : {1, 5, 1000}) {
        KernelCase test("column_sum", {{"x", x}, {"out", F32}},
                        {{"rows", rows}, {"columns", 77}, {"ldx", 80}});
        test.fill("x", rows, 77, 80, 1);
        test.fill("out", 1, 77, 77, 2);
        std::vector<double> exact;
        for (int64_t i = 0; i < 77; ++i) {
          exact.push_back(test.at("out", i));
          for (int64_t row = 0; row < rows; ++row)
            exact[i] += test.at("x", row * 80 + i);
        }
        expectOk(test.run(implementation));
        for (int64_t i = 0; i < 77; ++i)
          ASSERT_NEAR(test.at("out", i), exact[i],
                      tolerance(F32, exact[i], rows));
      }
}

void checkAccumulate(const std::string &implementation, qlora_dtype x,
                     qlora_dtype y, int64_t columns, int64_t ldx, int64_t ldy) {
  KernelCase test(
      "accumulate", {{"x", x}, {"y", y}},
      {{"rows", 6}, {"columns", columns}, {"ldx", ldx}, {"ldy", ldy}});
  test.fill("x", 6, columns, ldx, 1);
  test.fill("y", 6, columns, ldy, 2);
  std::vector<double> exact;
  for (int64_t row = 0; row < 6; ++row)
    for (int64_t i = 0; i < columns; ++i)
      exact.push_back(rounded(y, float(test.at("x", row * ldx + i)) +
                                     float(test.at("y", row * ldy + i))));
  expectOk(test.run(implementation));
  EXPECT_TRUE(test.gapsHold("y", 6, columns, ldy));
  for (int64_t row = 0; row < 6; ++row)
    for (int64_t i = 0; i < columns; ++i)
      ASSERT_EQ(test.at("y", row * ldy + i), exact[row * columns + i]);
}

/// Rows without gaps, rows that begin at any element, and rows that end with a
/// partial 16-byte group.
TEST(Accumulate, RoundsOnce) {
  for (const std::string &implementation : allRowsToTest("accumulate"))
    for (qlora_dtype x : {F32, BF16})
      for (qlora_dtype y : {F32, BF16}) {
        checkAccumulate(implementation, x, y, 41, 41, 41);
        checkAccumulate(implementation, x, y, 41, 41, 50);
        checkAccumulate(implementation, x, y, 44, 48, 56);
      }
}

TEST(CopyRows, CopiesWholeVectors) {
  for (const std::string &implementation : allRowsToTest("copy_rows")) {
    KernelCase test("copy_rows", {{"x", BF16}, {"out", BF16}},
                    {{"rows", 5}, {"columns", 24}, {"ldx", 32}, {"ldo", 24}});
    test.fill("x", 5, 24, 32, 1);
    expectOk(test.run(implementation));
    for (int64_t row = 0; row < 5; ++row)
      for (int64_t i = 0; i < 24; ++i)
        ASSERT_EQ(test.at("out", row * 24 + i), test.at("x", row * 32 + i));
  }
}

TEST(CopyRows, ChangesTheStride) {
  for (const std::string &implementation : allRowsToTest("copy_rows"))
    for (qlora_dtype dtype : {F32, BF16, F16, I32})
      for (int64_t ldo : {15, 16}) {
        KernelCase test(
            "copy_rows", {{"x", dtype}, {"out", dtype}},
            {{"rows", 7}, {"columns", 13}, {"ldx", 24}, {"ldo", ldo}});
        test.fill("x", 7, 13, 24, 1, 100);
        expectOk(test.run(implementation));
        if (dtype != I32) {
          EXPECT_TRUE(test.gapsHold("out", 7, 13, ldo));
        }
        for (int64_t row = 0; row < 7; ++row)
          for (int64_t i = 0; i < 13; ++i)
            ASSERT_EQ(test.at("out", row * ldo + i),
                      test.at("x", row * 24 + i));
      }
}

/// Returns norm and scale for the gradient (loss, count, 3, 4, 0, ..., `last`).
/// clip_norm divides by `count`. By default the norm before that is 13.
std::pair<double, double> clip(const std::string &implementation, double count,
                               float maxNorm, double loss = 1e9,
                               double last = 12) {
  KernelCase test("clip_norm",
                  {{"gradient", F32}, {"norm", F32}, {"scale", F32}},
                  {{"elements", 1000}, {"skip", 2}, {"others", 0}});
  for (int64_t i = 0; i < 1000; ++i)
    test.set("gradient", i, i == 2 ? 3 : i == 3 ? 4 : i == 999 ? last : 0);
  test.set("gradient", 0, loss);
  test.set("gradient", 1, count);
  qlora_step_block step = {};
  step.max_grad_norm = maxNorm;
  expectOk(test.run(implementation, nullptr, &step));
  return {test.at("norm", 0), test.at("scale", 0)};
}

TEST(ClipNorm, DividesThenClips) {
  for (const std::string &row : allRowsToTest("clip_norm")) {
    EXPECT_EQ(clip(row, 2, 100), std::pair(6.5, 0.5));
    EXPECT_EQ(clip(row, 2, 0), std::pair(6.5, 0.5));
    EXPECT_EQ(clip(row, 2, 1).first, 6.5);
    EXPECT_NEAR(clip(row, 2, 1).second, 1 / (6.5 + 1e-6) / 2, 1e-8);
    EXPECT_EQ(clip(row, 0, 1), std::pair(0.0, 0.0));
  }
}

/// Returns norm and scale for the gradient (1, count = 1, 3, 4) of one rank and
/// two more ranks with gradients of norms 12 and `last`.
std::pair<double, double> clipPieces(const std::string &implementation,
                                     double last) {
  KernelCase test("clip_norm",
                  {{"gradient", F32}, {"lengths", F32}, {"norm", F32},
                   {"scale", F32}},
                  {{"elements", 4}, {"skip", 2}, {"others", 2}});
  for (int64_t i = 0; i < 4; ++i)
    test.set("gradient", i, i < 2 ? 1 : i + 1);
  test.set("lengths", 0, 12);
  test.set("lengths", 1, last);
  qlora_step_block step = {};
  expectOk(test.run(implementation, nullptr, &step));
  return {test.at("norm", 0), test.at("scale", 0)};
}

TEST(ClipNorm, TakesTheLengthsOfPieces) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::string &row : allRowsToTest("clip_norm")) {
    // 9 + 16 + 144 + 84 * 84 = 85 * 85
    EXPECT_EQ(clipPieces(row, 84), std::pair(85.0, 1.0));
    EXPECT_TRUE(std::isnan(clipPieces(row, infinity).second));
  }
}

TEST(Length, IsThatOfAVector) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::string &row : allRowsToTest("length"))
    for (double last : {12.0, infinity}) {
      KernelCase test("length", {{"x", F32}, {"length", F32}},
                      {{"elements", 1000}});
      for (int64_t i = 0; i < 1000; ++i)
        test.set("x", i, i == 0 ? 3 : i == 500 ? -4 : i == 999 ? last : 0);
      expectOk(test.run(row));
      EXPECT_EQ(test.at("length", 0), last == 12 ? 13 : infinity);
    }
}

TEST(ClipNorm, ScalesWithNaNWhereSomethingIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::string &row : allRowsToTest("clip_norm"))
    for (float maxNorm : {0.0f, 1.0f})
      for (double bad : {infinity, -infinity, nan}) {
        EXPECT_TRUE(std::isnan(clip(row, 2, maxNorm, bad).second))
            << row << bad;
        EXPECT_TRUE(std::isnan(clip(row, 2, maxNorm, 1, bad).second)) << bad;
      }
}

} // namespace
} // namespace qlora
