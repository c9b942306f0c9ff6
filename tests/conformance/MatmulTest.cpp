// SPDX-License-Identifier: MIT

// Compares matmul, panel_matmul and decode with their references.

#include "tests/conformance/PanelCase.h"

#include <cstring>

namespace qlora {
namespace {

constexpr qlora_dtype F16 = QLORA_DTYPE_F16;
constexpr qlora_dtype NF4 = QLORA_DTYPE_NF4;

struct Product {
  int64_t m, n, k;
  qlora_dtype a, b, c;
  bool transposeA, transposeB;
  double alpha, beta;
  int64_t gap; ///< in all three matrices
};

std::ostream &operator<<(std::ostream &out, const Product &p) {
  return out << p.m << "x" << p.n << "x" << p.k << " " << dtypeName(p.a) << ","
             << dtypeName(p.b) << "->" << dtypeName(p.c) << " t" << p.transposeA
             << p.transposeB << " alpha " << p.alpha << " beta " << p.beta
             << " gap " << p.gap;
}

KernelCase makeCase(const Product &p) {
  const int64_t aColumns = p.transposeA ? p.m : p.k;
  const int64_t bColumns = p.transposeB ? p.k : p.n;
  KernelCase test("matmul", {{"a", p.a}, {"b", p.b}, {"c", p.c}},
                  {{"m", p.m},
                   {"n", p.n},
                   {"k", p.k},
                   {"lda", aColumns + p.gap},
                   {"ldb", bColumns + p.gap},
                   {"ldc", p.n + p.gap},
                   {"transpose_a", p.transposeA},
                   {"transpose_b", p.transposeB},
                   {"alpha", bits(p.alpha)},
                   {"beta", bits(p.beta)}});
  test.fill("a", p.transposeA ? p.k : p.m, aColumns, aColumns + p.gap, 1);
  test.fill("b", p.transposeB ? p.n : p.k, bColumns, bColumns + p.gap, 2);
  if (p.beta != 0) // otherwise c holds NaN, and must not be read
    test.fill("c", p.m, p.n, p.n + p.gap, 3);
  return test;
}

/// If only one operand is f32, it is rounded to bf16, which adds an independent
/// error to each product.
double roundingError(const Product &p) {
  const bool isMixed = p.a != p.b;
  return isMixed ? 4 * unitRoundoff(BF16) * std::sqrt(double(p.k)) : 0;
}

void checkProduct(const Product &p, const std::string &implementation) {
  SCOPED_TRACE(p);
  KernelCase before = makeCase(p), expected = makeCase(p), got = makeCase(p);
  if (!got.isTaken(implementation))
    return;
  expectOk(expected.run("reference"));
  expectOk(got.run(implementation));
  EXPECT_TRUE(got.gapsHold("c", p.m, p.n, p.n + p.gap));
  double worst = 0;
  for (int64_t row = 0; row < p.m; ++row)
    for (int64_t column = 0; column < p.n; ++column) {
      const int64_t i = row * (p.n + p.gap) + column;
      const double exact = expected.at("c", i);
      const double error = std::abs(got.at("c", i) - exact);
      const double limit = tolerance(p.c, exact, p.k, std::abs(p.alpha)) +
                           tolerance(F32, p.beta, 1) + roundingError(p) +
                           addingError(exact - p.beta * before.at("c", i),
                                       p.beta, p.c);
      worst = std::max(worst, std::isnan(error) ? 1e30 : error / limit);
    }
  EXPECT_LE(worst, 1.0);
}

TEST(Matmul, AgreesWithTheReferenceOnOddShapes) {
  const int64_t shapes[][3] = {{1, 1, 1},    {1, 7, 3},    {5, 1, 9},
                               {3, 4, 1},    {17, 33, 65}, {128, 24, 97},
                               {64, 8, 130}, {8, 96, 300}, {150, 151, 257},
                               {1, 200, 64}, {200, 1, 64}};
  const qlora_dtype types[][3] = {{F32, F32, F32},   {BF16, BF16, BF16},
                                  {BF16, BF16, F32}, {BF16, F32, BF16},
                                  {BF16, F32, F32},  {F32, BF16, F32},
                                  {F32, F32, BF16},  {F32, BF16, BF16},
                                  {F16, F16, F32},   {F16, BF16, F16}};
  int number = 0;
  for (const auto &shape : shapes)
    for (const auto &type : types)
      for (int flags = 0; flags < 4; ++flags) {
        ++number;
        const Product p = {shape[0],
                           shape[1],
                           shape[2],
                           type[0],
                           type[1],
                           type[2],
                           (flags & 1) != 0,
                           (flags & 2) != 0,
                           number % 3 == 0 ? 0.5 : 1.0,
                           number % 5 == 0   ? 0.25
                           : number % 2 == 0 ? 1.0
                                             : 0.0,
                           number % 7 < 3 ? 5 : 0};
        for (const std::string &row : rowsToTest("matmul"))
          checkProduct(p, row);
      }
}

TEST(PanelMatmul, AgreesWithTheReferenceOnOddShapes) {
  // In most shapes columns % block != 0, so blocks straddle rows.
  const int64_t shapes[][5] = {{1, 1, 1, 1, 64},      {3, 5, 7, 2, 16},
                               {17, 100, 61, 33, 64}, {65, 96, 128, 32, 64},
                               {9, 70, 257, 70, 128}, {12, 31, 300, 100, 64}};
  const qlora_dtype types[][3] = {{F32, NF4, F32},    {BF16, NF4, BF16},
                                  {BF16, NF4, F32},   {F32, BF16, F32},
                                  {BF16, BF16, BF16}, {BF16, F16, BF16},
                                  {F32, F16, F32},    {BF16, F32, BF16},
                                  {F32, QLORA_DTYPE_LLM_INT8, F32},
                                  {BF16, QLORA_DTYPE_LLM_INT8, BF16},
                                  {F32, QLORA_DTYPE_INT4, F32},
                                  {BF16, QLORA_DTYPE_FP8, BF16}};
  int number = 0;
  for (const auto &s : shapes)
    for (const auto &type : types)
      for (int flags = 0; flags < 2; ++flags) {
        ++number;
        const StoredFormat *format = storedFormat(type[1]);
        const bool hasRows = format && format->takesRows;
        const Panels p = {s[0],
                          s[1],
                          s[2],
                          s[3],
                          hasRows ? s[2] : s[4],
                          !hasRows && number % 3 == 0,
                          flags != 0,
                          type[0],
                          type[1],
                          type[2],
                          number % 4 == 0 ? 0.5 : 1.0,
                          number % 5 == 0   ? 0.25
                          : number % 3 == 1 ? 1.0
                                            : 0.0,
                          number % 7 < 3 ? 3 : 0};
        for (const std::string &row : rowsToTest("panel_matmul"))
          checkPanels(p, row);
      }
}

TEST(Decode, HasTheBitsOfTheReference) {
  const int64_t shapes[][3] = {
      {1, 1, 64}, {3, 7, 16}, {33, 61, 64}, {129, 257, 128}, {7, 4099, 4096},
      {20, 80, 64}, {6, 48, 32},
      // Blocks of 32 elements, the run of one lane in Decode.cu, and shorter
      // blocks; full tiles with a remainder; blocks that straddle rows.
      {9, 2048, 32}, {41, 64, 16}, {35, 512, 64}, {350, 48, 64}, {5, 16, 64}};
  for (const auto &s : shapes)
    for (qlora_dtype w : {NF4, BF16, F16, F32})
      for (qlora_dtype out : {F32, BF16, F16})
        for (int64_t doubleQuant : {0, 1}) {
          SCOPED_TRACE(testing::Message()
                       << s[0] << "x" << s[1] << " " << dtypeName(w) << "->"
                       << dtypeName(out));
          const auto make = [&] {
            KernelCase test("decode", {{"w", w}, {"out", out}},
                            {{"rows", s[0]},
                             {"columns", s[1]},
                             {"block", s[2]},
                             {"double_quant", doubleQuant}});
            fillWeight(test, s[0], s[1], s[2], doubleQuant != 0);
            return test;
          };
          KernelCase expected = make();
          expectOk(expected.run("reference"));
          for (const std::string &row : rowsToTest("decode")) {
            KernelCase got = make();
            expectOk(got.run(row));
            EXPECT_EQ(std::memcmp(expected.data("out"), got.data("out"),
                                  got.bytes("out")),
                      0)
                << row;
          }
        }
}

/// Formats with one block per row of any length, and formats with short blocks
/// whose scales are codes.
TEST(Decode, HasTheBitsOfTheReferenceInEveryFormat) {
  struct Weight {
    qlora_dtype dtype;
    int64_t rows, columns, block;
    bool doubleQuant;
  };
  const Weight weights[] = {
      {QLORA_DTYPE_LLM_INT8, 1, 1, 1, false},
      {QLORA_DTYPE_LLM_INT8, 33, 61, 61, false},
      {QLORA_DTYPE_LLM_INT8, 129, 512, 512, false},
      {QLORA_DTYPE_LLM_INT8, 70, 80, 80, false},
      {QLORA_DTYPE_MXFP4, 41, 64, 32, true},
      {QLORA_DTYPE_MXFP4, 129, 96, 32, true},
      {QLORA_DTYPE_FP4, 33, 61, 64, true},
      {QLORA_DTYPE_FP4, 40, 128, 64, false},
      {QLORA_DTYPE_FP8, 33, 61, 61, false},
      {QLORA_DTYPE_FP8, 65, 192, 64, false},
      {QLORA_DTYPE_INT4, 33, 61, 61, false},
      {QLORA_DTYPE_INT4, 7, 48, 48, false},
      {QLORA_DTYPE_INT4, 65, 192, 32, false},
      {QLORA_DTYPE_INT4, 40, 256, 128, false},
      {QLORA_DTYPE_INT8, 33, 61, 61, false},
      {QLORA_DTYPE_INT8, 41, 96, 16, false}};
  for (const Weight &w : weights)
    for (qlora_dtype out : {F32, BF16, F16}) {
      SCOPED_TRACE(testing::Message() << w.rows << "x" << w.columns << " "
                                      << dtypeName(w.dtype));
      const auto run = [&](const std::string &row) {
        KernelCase test("decode", {{"w", w.dtype}, {"out", out}},
                        {{"rows", w.rows},
                         {"columns", w.columns},
                         {"block", w.block},
                         {"double_quant", w.doubleQuant}});
        fillWeight(test, w.rows, w.columns, w.block, w.doubleQuant);
        expectOk(test.run(row));
        return test;
      };
      KernelCase expected = run("reference");
      for (const std::string &row : rowsToTest("decode")) {
        KernelCase got = run(row);
        EXPECT_EQ(std::memcmp(expected.data("out"), got.data("out"),
                              got.bytes("out")),
                  0)
            << row;
      }
    }
}

TEST(Decode, RoundsProductAndSumOneByOne) {
  // A fused operation would not round the product of map * absmax + offset.
  // Here (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 rounds to 1 + 2^-11. Subtracting 1
  // gives 2^-11, but 2^-11 + 2^-24 with a fused operation.
  KernelCase test(
      "decode", {{"w", NF4}, {"out", F32}},
      {{"rows", 1}, {"columns", 64}, {"block", 64}, {"double_quant", 1}});
  const StoredLayout layout = StoredLayout::of(QLORA_DTYPE_NF4, 64, 64, true);
  uint8_t *bytes = test.data("w");
  std::memset(bytes, 0, static_cast<size_t>(layout.bytes));
  const auto floats = [&](int64_t offset) {
    return reinterpret_cast<float *>(bytes + offset);
  };
  floats(layout.nestedAbsmax)[0] = 1 + 0x1p-12f;
  floats(layout.nestedMap)[0] = 1 + 0x1p-12f;
  floats(layout.correction)[0] = -1;
  floats(layout.codeBook)[0] = 1;
  for (const std::string &row : allRowsToTest("decode")) {
    expectOk(test.run(row));
    EXPECT_EQ(test.at("out", 0), 0x1p-11) << row;
  }
}

#ifdef _OPENMP
TEST(Matmul, BitsDoNotDependOnThreads) {
  const int64_t shapes[][3] = {{512, 96, 576},  {24, 576, 1000}, {576, 8, 700},
                               {67, 131, 400},  {300, 24, 64},   {8, 8, 3000},
                               {24, 100, 2048}, {40, 8, 4096}};
  const qlora_dtype types[][3] = {{F32, F32, F32},
                                  {BF16, BF16, BF16},
                                  {BF16, F32, BF16},
                                  {BF16, BF16, F32}};
  int first = 0;
  for (const auto &s : shapes) {
    first = 1 - first;
    for (const auto &type : types)
      // Alternate between even and odd flags for successive shapes and types.
      for (int flags = first = 1 - first; flags < 8; flags += 2) {
        const Product p = {s[0],
                           s[1],
                           s[2],
                           type[0],
                           type[1],
                           type[2],
                           (flags & 1) != 0,
                           (flags & 2) != 0,
                           1.0,
                           1.0,
                           flags & 4};
        SCOPED_TRACE(p);
        const std::vector<uint8_t> one = resultWith(1, p);
        EXPECT_TRUE(one == resultWith(2, p));
        EXPECT_TRUE(one == resultWith(5, p));
      }
  }
}

TEST(PanelMatmul, BitsDoNotDependOnThreads) {
  for (qlora_dtype type : {F32, BF16})
    for (bool isForward : {false, true}) {
      const Panels p = {70,   200, 192,  64,  64,  true, isForward,
                        type, NF4, type, 1.0, 1.0, 0};
      SCOPED_TRACE(p);
      const std::vector<uint8_t> one = resultWith(1, p);
      EXPECT_TRUE(one == resultWith(2, p));
      EXPECT_TRUE(one == resultWith(5, p));
    }
}
#endif

} // namespace
} // namespace qlora
