// SPDX-License-Identifier: MIT

// matmul and panel_matmul of few rows: the CPU row `streamed` and the CUDA row
// `tensor`, compared with the reference, and their bits.

#include "tests/conformance/PanelCase.h"

namespace qlora {
namespace {

/// Products of few rows, which `streamed` accepts, and `tensor` mostly: with
/// depths of one run of Cpu/RowDots.h and of several, whole and partial; and
/// with outputs that are no multiple of a tile. Rows are multiples of a
/// vector's lanes or not.
std::vector<Panels> fewRows() {
  const int64_t shapes[][4] = {{1, 9, 512, 64},
                               {1, 6, 1000, 64},
                               {16, 6, 1000, 64},
                               {7, 131, 96, 32},
                               {13, 30, 544, 64}};
  std::vector<Panels> cases;
  const qlora_dtype stored[] = {
      QLORA_DTYPE_NF4,  QLORA_DTYPE_FP4, QLORA_DTYPE_MXFP4,
      QLORA_DTYPE_INT4, QLORA_DTYPE_FP8, F32, BF16, QLORA_DTYPE_F16};
  for (const auto &s : shapes)
    for (qlora_dtype w : stored)
      for (qlora_dtype type : {F32, BF16}) {
        const bool isCoded = w == QLORA_DTYPE_MXFP4;
        const bool hasPower = w == QLORA_DTYPE_NF4 || w == QLORA_DTYPE_FP4;
        const auto number = int64_t(cases.size());
        cases.push_back({s[0], s[1], s[2], 16,
                         isCoded    ? 32
                         : hasPower ? std::max<int64_t>(s[3], 64)
                                    : std::min<int64_t>(s[3], 64),
                         isCoded || (hasPower && number % 3 != 0), true, type,
                         w, number % 4 == 3 ? F32 : type,
                         number % 2 ? 0.5 : 1.0, number % 5 == 1 ? 0.25 : 0.0,
                         number % 7 < 3 ? 3 : 0});
      }
  return cases;
}

TEST(PanelMatmul, OfFewRowsAgreesWithTheReference) {
  for (const Panels &p : fewRows())
    for (const std::string &row : rowsToTest("panel_matmul"))
      checkPanels(p, row);
}

/// Returns the bytes of row `row` of c if a has `count` rows of the case `all`,
/// from `first` on.
std::vector<uint8_t> rowOf(const Panels &all, int64_t first, int64_t count,
                           int64_t row, const std::string &implementation) {
  Panels some = all;
  some.m = count;
  KernelCase whole = makeCase(all), test = makeCase(some);
  const int64_t lda = all.columns + all.gap, ldc = all.rows + all.gap;
  for (int64_t i = 0; i < count * lda - all.gap; ++i)
    test.set("a", i, whole.at("a", first * lda + i));
  for (int64_t i = 0; all.beta != 0 && i < count * ldc - all.gap; ++i)
    test.set("c", i, whole.at("c", first * ldc + i));
  expectOk(test.run(implementation));
  const int64_t bytes = dtypeBits(all.c) / 8;
  const uint8_t *const begin = test.data("c") + (row - first) * ldc * bytes;
  return {begin, begin + all.rows * bytes};
}

TEST(PanelMatmul, BitsOfFewRowsDoNotDependOnOtherRows) {
  for (Panels p : fewRows()) {
    p.m = 13;
    for (const std::string &name : rowsToTest("panel_matmul")) {
      if (!findKernelRow("panel_matmul." + name)->limits ||
          !makeCase(p).isTaken(name))
        continue;
      SCOPED_TRACE(testing::Message() << name << ": " << p);
      const int64_t row = 4;
      const std::vector<uint8_t> alone = rowOf(p, row, 1, row, name);
      EXPECT_TRUE(alone == rowOf(p, row, 2, row, name));
      EXPECT_TRUE(alone == rowOf(p, row, 3, row, name));
      EXPECT_TRUE(alone == rowOf(p, 2, 5, row, name));
      EXPECT_TRUE(alone == rowOf(p, 0, 13, row, name));
    }
  }
}

TEST(Matmul, StreamedRefusesManyRowsAndTransposedRows) {
  const auto reasonFor = [](int64_t m, bool transposeA, bool transposeB) {
    const KernelCase test("matmul", {{"a", F32}, {"b", F32}, {"c", F32}},
                          {{"m", m},
                           {"n", 5},
                           {"k", 40},
                           {"lda", transposeA ? m : 40},
                           {"ldb", transposeB ? 40 : 5},
                           {"ldc", 5},
                           {"transpose_a", transposeA},
                           {"transpose_b", transposeB},
                           {"alpha", bits(1)},
                           {"beta", bits(0)}});
    return findKernelRow("matmul.streamed")->reject(test.request).value_or("");
  };
  EXPECT_EQ(reasonFor(16, false, true), "");
  EXPECT_EQ(reasonFor(17, false, true), "m must be at most 16, got 17");
  EXPECT_EQ(reasonFor(3, true, true), "transpose_a must be 0, got 1");
  EXPECT_EQ(reasonFor(3, false, false), "transpose_b must be 1, got 0");
}

#ifdef _OPENMP
TEST(PanelMatmul, BitsOfFewRowsDoNotDependOnThreads) {
  for (const Panels &p : fewRows()) {
    SCOPED_TRACE(p);
    const std::vector<uint8_t> one = resultWith(1, p, "streamed");
    EXPECT_TRUE(one == resultWith(2, p, "streamed"));
    EXPECT_TRUE(one == resultWith(5, p, "streamed"));
  }
}
#endif

} // namespace
} // namespace qlora
