// SPDX-License-Identifier: MIT

// Tests which tensors can be split into slices (tp shards).

#include "runtime/Weights/Slices.h"

#include <gtest/gtest.h>

#include <vector>

namespace qlora {
namespace {

bool hasSlices(qlora_dtype dtype, int64_t block, std::vector<int64_t> shape,
               uint32_t dimension, std::vector<int64_t> segments,
               int64_t slices = 2, bool doubleQuant = false) {
  return canSlice({dtype, block, doubleQuant},
                  {shape, dimension, segments, slices});
}

TEST(Slices, OfNumbersAreAnyEqualPartsOfSegments) {
  const auto of = [](std::vector<int64_t> shape, uint32_t dimension,
                     std::vector<int64_t> segments, int64_t slices = 2) {
    return hasSlices(QLORA_DTYPE_BF16, 0, std::move(shape), dimension,
                     std::move(segments), slices);
  };
  EXPECT_TRUE(of({6}, 0, {6}));
  EXPECT_TRUE(of({12, 5}, 0, {6, 2, 4}));
  EXPECT_TRUE(of({3, 5, 6}, 2, {6}, 3));
  EXPECT_FALSE(of({6}, 0, {3, 3})); // odd segments
  EXPECT_FALSE(of({6}, 0, {6}, 4)); // 6 / 4 is no integer
  EXPECT_FALSE(of({6}, 0, {4}));    // sum below the dimension
  EXPECT_FALSE(of({6}, 0, {4, 4})); // above
  EXPECT_FALSE(of({6}, 0, {}));     // no segments
  EXPECT_FALSE(of({6}, 0, {6, 0})); // an empty segment
  EXPECT_FALSE(of({6}, 0, {8, -2}));
  EXPECT_FALSE(of({6, 5}, 2, {6})); // no such dimension
}

TEST(Slices, OfBlocksAreWholeBlocks) {
  constexpr auto kNF4 = QLORA_DTYPE_NF4;
  EXPECT_TRUE(hasSlices(kNF4, 64, {4, 256}, 1, {256}));
  EXPECT_TRUE(hasSlices(kNF4, 64, {4, 512}, 1, {128, 384}));
  EXPECT_FALSE(hasSlices(kNF4, 64, {4, 192}, 1, {192}));     // 96 per slice
  EXPECT_FALSE(hasSlices(kNF4, 64, {4, 256}, 1, {256}, 8));  // 32 per slice
  EXPECT_FALSE(hasSlices(kNF4, 64, {4, 256}, 1, {192, 64})); // 96 and 32
  EXPECT_TRUE(hasSlices(kNF4, 64, {6, 256}, 0, {4, 2}));
  EXPECT_TRUE(hasSlices(kNF4, 64, {6, 64, 2}, 1, {64})); // 32 times 2
  // Rows of 40 elements in blocks of 64: 8 rows are 5 blocks, but 4 rows are
  // 2.5.
  EXPECT_TRUE(hasSlices(kNF4, 64, {16, 40}, 0, {16}));
  EXPECT_FALSE(hasSlices(kNF4, 64, {8, 40}, 0, {8}));
  // Rows of 80 elements: 4 rows are 5 blocks, but 3 rows are 3.75.
  EXPECT_TRUE(hasSlices(kNF4, 64, {8, 80}, 0, {8}));
  EXPECT_FALSE(hasSlices(kNF4, 64, {6, 80}, 0, {6}));
  EXPECT_TRUE(hasSlices(kNF4, 2048, {256, 80}, 0, {256}));
  EXPECT_TRUE(hasSlices(QLORA_DTYPE_MXFP4, 32, {4, 128}, 1, {64, 64}, 2, true));
  EXPECT_FALSE(hasSlices(QLORA_DTYPE_MXFP4, 32, {4, 96}, 1, {96}, 2, true));
  EXPECT_TRUE(hasSlices(QLORA_DTYPE_FP8, 128, {4, 512}, 1, {512}));
  EXPECT_FALSE(hasSlices(QLORA_DTYPE_FP8, 128, {4, 512}, 1, {512}, 8));
  EXPECT_TRUE(hasSlices(QLORA_DTYPE_INT4, 32, {4, 96}, 0, {4}));
  EXPECT_FALSE(hasSlices(QLORA_DTYPE_INT4, 32, {4, 96}, 1, {96}));
}

TEST(Slices, OfRowsHavePartsOfThem) {
  EXPECT_TRUE(hasSlices(QLORA_DTYPE_LLM_INT8, 61, {6, 61}, 0, {4, 2}));
  EXPECT_TRUE(hasSlices(QLORA_DTYPE_LLM_INT8, 62, {3, 62}, 1, {62}));
  EXPECT_TRUE(hasSlices(QLORA_DTYPE_FP8, 64, {3, 64}, 1, {24, 40}));
  EXPECT_TRUE(hasSlices(QLORA_DTYPE_INT4, 40, {3, 40}, 1, {40}));
  EXPECT_FALSE(hasSlices(QLORA_DTYPE_INT4, 42, {3, 42}, 1, {42})); // 21 codes
  const int64_t shape[] = {3, 64}, all[] = {64}, rows[] = {3};
  const SlicedFormat row = {QLORA_DTYPE_FP8, 64, false};
  EXPECT_EQ(blockOfSlice(row, {shape, 1, all, 4}), 16);
  EXPECT_EQ(blockOfSlice(row, {shape, 0, rows, 3}), 64);
  EXPECT_EQ(blockOfSlice({QLORA_DTYPE_FP8, 32, false}, {shape, 1, all, 2}), 32);
  EXPECT_EQ(blockOfSlice({QLORA_DTYPE_NF4, 64, false}, {shape, 1, all, 1}), 64);
}

TEST(Slices, AreOfWhatFormatsTake) {
  constexpr auto kNF4 = QLORA_DTYPE_NF4, kMicro = QLORA_DTYPE_MXFP4;
  EXPECT_FALSE(hasSlices(kNF4, 96, {4, 192}, 0, {4}));
  EXPECT_FALSE(hasSlices(kMicro, 32, {4, 128}, 0, {4}));
  EXPECT_TRUE(hasSlices(kNF4, 64, {4, 256}, 0, {4}, 2, true));
  EXPECT_EQ(doubleQuantOfSlice({kNF4, 64, true}), 2u);
  EXPECT_EQ(doubleQuantOfSlice({kNF4, 64, false}), 0u);
  EXPECT_EQ(doubleQuantOfSlice({kMicro, 32, true}), 1u);
  EXPECT_EQ(doubleQuantOfSlice({QLORA_DTYPE_BF16}), 0u);
}

} // namespace
} // namespace qlora
