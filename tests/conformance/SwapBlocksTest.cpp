// SPDX-License-Identifier: MIT

// swap_blocks has no other reference: the tests check each element's position.

#include "tests/conformance/KernelCase.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {
namespace {

constexpr qlora_dtype F32 = QLORA_DTYPE_F32;
constexpr qlora_dtype BF16 = QLORA_DTYPE_BF16;
constexpr qlora_dtype F16 = QLORA_DTYPE_F16;
constexpr qlora_dtype I32 = QLORA_DTYPE_I32;

/// A matrix x of [rows, columns] with leading dimension ldx, read as a dense
/// array of shape [first, second, run].
struct Blocks {
  int64_t rows, columns, first, second, run, ldx;

  int64_t elements() const { return rows * columns; }
  /// Returns the index in x of element i of the run at [of, other].
  int64_t at(int64_t of, int64_t other, int64_t i) const {
    const int64_t flat = (of * second + other) * run + i;
    return flat / columns * ldx + flat % columns;
  }
};

std::string nameOf(const Blocks &b) {
  return std::to_string(b.rows) + "x" + std::to_string(b.columns) + " as " +
         std::to_string(b.first) + "x" + std::to_string(b.second) + "x" +
         std::to_string(b.run) + ", ldx " + std::to_string(b.ldx);
}

KernelCase makeSwap(const Blocks &b, qlora_dtype type) {
  KernelCase test("swap_blocks", {{"x", type}, {"out", type}},
                  {{"rows", b.rows},
                   {"columns", b.columns},
                   {"first", b.first},
                   {"second", b.second},
                   {"run", b.run},
                   {"ldx", b.ldx}});
  test.fill("x", b.rows, b.columns, b.ldx, 1, 1000);
  return test;
}

void expectSwapped(const Blocks &b, KernelCase &test) {
  ASSERT_EQ(test.bytes("out"),
            uint64_t(b.elements()) * dtypeBits(test.dtype("x")) / 8);
  for (int64_t s = 0; s < b.second; ++s)
    for (int64_t f = 0; f < b.first; ++f)
      for (int64_t i = 0; i < b.run; ++i)
        ASSERT_EQ(test.at("out", (s * b.first + f) * b.run + i),
                  test.at("x", b.at(f, s, i)))
            << nameOf(b) << ": " << s << " " << f << " " << i;
}

/// Several runs per row and several rows per run; dense and with gaps; runs of
/// one element; one block in either dimension. Run lengths are multiples of 16
/// bytes for no, some or all types. Some shapes need more than one thread block
/// or CPU thread.
const Blocks kBlocks[] = {{7, 15, 7, 3, 5, 15},      {7, 15, 7, 3, 5, 19},
                          {7, 15, 21, 5, 1, 15},     {7, 15, 7, 15, 1, 20},
                          {7, 15, 1, 21, 5, 17},     {7, 15, 35, 1, 3, 17},
                          {6, 5, 2, 3, 5, 5},        {6, 5, 3, 2, 5, 9},
                          {12, 5, 2, 3, 10, 5},      {12, 5, 3, 2, 10, 6},
                          {12, 5, 1, 4, 15, 8},      {12, 5, 4, 1, 15, 8},
                          {1, 30, 2, 3, 5, 33},      {1, 1, 1, 1, 1, 1},
                          {7, 1, 1, 7, 1, 3},        {12, 1, 2, 3, 2, 3},
                          {5, 12, 5, 3, 4, 12},      {5, 12, 5, 3, 4, 16},
                          {5, 24, 5, 3, 8, 32},      {5, 24, 5, 3, 8, 28},
                          {5, 24, 5, 3, 8, 27},      {12, 8, 2, 3, 16, 8},
                          {12, 8, 3, 2, 16, 24},     {12, 8, 3, 2, 16, 9},
                          {1, 48, 2, 3, 8, 51},      {16, 3, 2, 1, 24, 3},
                          {40, 96, 40, 3, 32, 104},  {90, 160, 3, 6, 800, 160},
                          {90, 160, 3, 6, 800, 168}, {61, 147, 61, 7, 21, 150},
                          {12, 6, 2, 3, 12, 10},     {12, 12, 3, 2, 24, 20},
                          {700, 36, 7, 100, 36, 40}};

TEST(SwapBlocks, PutsEachRunInItsPlace) {
  for (const std::string &row : allRowsToTest("swap_blocks"))
    for (const Blocks &b : kBlocks)
      for (qlora_dtype type : {F32, BF16, F16, I32}) {
        SCOPED_TRACE(row);
        KernelCase test = makeSwap(b, type);
        EXPECT_EQ(findKernelRow("swap_blocks." + row)->reject(test.request),
                  std::nullopt)
            << nameOf(b);
        expectOk(test.run(row));
        expectSwapped(b, test);
      }
}

/// Run lengths that are multiples of 16 bytes, and operands that begin one
/// element after a 16-byte boundary.
TEST(SwapBlocks, TakesOperandsFromAnyElement) {
  if (!CudaGpu::get())
    GTEST_SKIP() << CudaGpu::reason();
  for (qlora_dtype type : {F32, BF16}) {
    const Blocks b = {90, 160, 3, 6, 800, 168};
    KernelCase test = makeSwap(b, type);
    test.isShifted = true;
    expectOk(test.run("cuda"));
    expectSwapped(b, test);
  }
}

#ifdef _OPENMP
TEST(SwapBlocks, AnyNumberOfThreadsCopiesAll) {
  const int before = omp_get_max_threads();
  for (int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    const Blocks b = {700, 36, 7, 50, 72, 40};
    KernelCase test = makeSwap(b, BF16);
    expectOk(test.run("cpu"));
    expectSwapped(b, test);
  }
  omp_set_num_threads(before);
}
#endif

/// Returns the message with which the op rejects the shape and types, if any.
std::optional<std::string> refusal(const Blocks &b, qlora_dtype x = F32,
                                   qlora_dtype out = F32) {
  return findKernelRow("swap_blocks.cpu")
      ->reject({findKernelOp("swap_blocks"),
                {x, out},
                {b.rows, b.columns, b.first, b.second, b.run, b.ldx}});
}

TEST(SwapBlocks, SaysWhatCannotBeSwapped) {
  EXPECT_EQ(refusal({6, 10, 2, 3, 10, 12}), std::nullopt);
  EXPECT_EQ(refusal({6, 10, 5, 3, 4, 12}),
            "run must divide the columns or be a multiple of them, got 4");
  EXPECT_EQ(refusal({6, 10, 2, 2, 15, 12}),
            "run must divide the columns or be a multiple of them, got 15");
  EXPECT_EQ(refusal({6, 10, 2, 4, 10, 12}),
            "first * second * run must be rows * columns, 60, got 80");
  EXPECT_EQ(refusal({6, 10, 2, 3, 10, 9}), "ldx must hold 10 columns, got 9");
  EXPECT_EQ(refusal({6, 10, 2, 3, 10, 10}, BF16, F16),
            "out must be bf16 like x, got f16");
  constexpr int64_t kHuge = int64_t(1) << 40;
  EXPECT_EQ(refusal({kHuge, kHuge, kHuge, kHuge, kHuge, kHuge}),
            "operand x is larger than an address space");
}

} // namespace
} // namespace qlora
