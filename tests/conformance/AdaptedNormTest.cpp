// SPDX-License-Identifier: MIT

// Compares adapted_norm with its reference implementation.

#include "tests/conformance/KernelCase.h"

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype NF4 = QLORA_DTYPE_NF4;

struct Shape {
  int64_t rows, columns, rank;
};

KernelCase makeCase(const Shape &s, qlora_dtype w, bool isTransposed,
                    bool isDouble) {
  const int64_t out = isTransposed ? s.columns : s.rows;
  const int64_t in = isTransposed ? s.rows : s.columns;
  const StoredFormat *format = storedFormat(w);
  const int64_t block = !format ? 0 : format->takesRows ? s.columns : 64;
  KernelCase test("adapted_norm",
                  {{"w", w}, {"a", F32}, {"b", F32}, {"out", F32}},
                  {{"rows", s.rows},
                   {"columns", s.columns},
                   {"rank", s.rank},
                   {"turned", isTransposed},
                   {"block", block},
                   {"double_quant", w == NF4 && isDouble},
                   {"scale", std::bit_cast<int64_t>(0.7)}});
  if (format)
    fillStored(test.data("w"),
               StoredLayout::of(w, s.rows * s.columns, block,
                                w == NF4 && isDouble),
               5);
  else
    test.fill("w", s.rows, s.columns, s.columns, 5);
  test.fill("a", s.rank, in, in, 1);
  test.fill("b", out, s.rank, s.rank, 2);
  return test;
}

void check(const Shape &s, const std::string &implementation, qlora_dtype w,
           bool isTransposed, bool isDouble) {
  SCOPED_TRACE(implementation + " " + std::string(dtypeName(w)) +
               (isTransposed ? " turned" : ""));
  KernelCase expected = makeCase(s, w, isTransposed, isDouble);
  KernelCase got = makeCase(s, w, isTransposed, isDouble);
  expectOk(expected.run("reference"));
  expectOk(got.run(implementation));
  for (int64_t i = 0; i < (isTransposed ? s.columns : s.rows); ++i)
    ASSERT_NEAR(got.at("out", i), expected.at("out", i),
                tolerance(F32, expected.at("out", i), s.rank));
}

/// Row counts, column counts and LoRA ranks that are not multiples of any tile
/// or block size, and quantization blocks that straddle rows.
TEST(AdaptedNorm, AgreesWithTheReferenceOnOddShapes) {
  const Shape shapes[] = {
      {1, 1, 1}, {17, 513, 3}, {33, 64, 8}, {5, 1100, 16}, {600, 7, 2}};
  for (const std::string &implementation : allRowsToTest("adapted_norm"))
    for (const Shape &shape : shapes)
      for (qlora_dtype w : {NF4, F32, QLORA_DTYPE_BF16, QLORA_DTYPE_F16,
                            QLORA_DTYPE_FP8, QLORA_DTYPE_INT4,
                            QLORA_DTYPE_INT8})
        for (int flags = 0; flags < 4; ++flags)
          check(shape, implementation, w, flags & 1, flags & 2);
}

} // namespace
} // namespace qlora
