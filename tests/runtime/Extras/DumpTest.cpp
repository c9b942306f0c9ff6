// SPDX-License-Identifier: MIT

// Joins tp shards of weights for a dump.

#include "runtime/Extras/Dump.h"

#include "tests/runtime/DemoTables.h"

using namespace qlora;

/// Expects that two ranks' tp shards join to a weight whose elements have their
/// index as value.
static void expectWhole(uint32_t dimension, std::vector<int64_t> segments,
                        std::vector<int64_t> shape,
                        std::vector<std::vector<uint8_t>> slices) {
  DemoTables tables;
  qlora_parameter parameter{};
  parameter.rank = static_cast<uint32_t>(shape.size());
  std::ranges::copy(shape, parameter.shape);
  parameter.slices = 2;
  parameter.slice_dimension = dimension;
  parameter.segments = static_cast<uint32_t>(segments.size());
  parameter.first_segment = static_cast<uint32_t>(tables.constants.size());
  tables.constants.insert(tables.constants.end(), segments.begin(),
                          segments.end());
  const LoadedModule module = tables.load().value();
  shape[dimension] *= 2;
  EXPECT_EQ(wholeShapeOf(parameter), shape);
  const std::vector<uint8_t> whole = joinSlices(module, parameter, slices);
  ASSERT_EQ(whole.size(), 2 * slices[0].size());
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_EQ(whole[i], i);
}

TEST(Dump, KnowsWhichTokensRowsOfLogitsAreOf) {
  const auto tokens = [](int64_t rows, int64_t parts, int64_t first) {
    std::vector<int64_t> tokens;
    for (int64_t row = 0; row < rows; ++row)
      tokens.push_back(tokenOfRow(row, {2, 4}, parts, first));
    return tokens;
  };
  using Tokens = std::vector<int64_t>;
  EXPECT_EQ(tokens(8, 1, 5), Tokens({0, 1, 2, 3, 4, 5, 6, 7}));
  // With pairs of context-parallel ranks, rank 3 has the second half of each
  // sequence.
  EXPECT_EQ(tokens(4, 2, 3), Tokens({2, 3, 6, 7}));
  // Ranks that shard the embedding table have the rows of both context-parallel
  // ranks, one rank after the other.
  EXPECT_EQ(tokens(8, 2, 0), Tokens({0, 1, 4, 5, 2, 3, 6, 7}));
  // Ranks 2 and 3 of four context-parallel ranks have the second half of each
  // sequence.
  EXPECT_EQ(tokens(4, 4, 2), Tokens({2, 6, 3, 7}));
}

TEST(Dump, JoinsSlicesOfRowsAndColumns) {
  // Rows of three columns: shard 0 has rows 0 and 1, shard 1 rows 2 and 3.
  expectWhole(0, {4}, {2, 3}, {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}});
  // Two columns, segments of two and of four rows.
  expectWhole(0, {2, 4}, {3, 2}, {{0, 1, 4, 5, 6, 7}, {2, 3, 8, 9, 10, 11}});
  // Two rows, segments of two and of four columns.
  expectWhole(1, {2, 4}, {2, 3}, {{0, 2, 3, 6, 8, 9}, {1, 4, 5, 7, 10, 11}});
  // Two bytes per element.
  expectWhole(1, {2}, {2, 1}, {{0, 1, 4, 5}, {2, 3, 6, 7}});
}
