// SPDX-License-Identifier: MIT

// Selection of rows of several files for training and for validation.

#include "runtime/Data/RowSelection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/runtime/Data/DataFiles.h"

namespace qlora {
namespace {

RowSelection select(std::vector<RowSource> sources, double size = 0,
                    uint64_t seed = 42) {
  auto chosen = selectRows(sources, size, seed);
  EXPECT_TRUE(chosen.isOk()) << chosen.status().message();
  return std::move(chosen).value();
}

std::string errorOf(std::vector<RowSource> sources, double size) {
  return selectRows(sources, size, 42).status().message();
}

/// Returns how often each row occurs.
std::map<int64_t, int> times(const std::vector<uint32_t> &rows) {
  std::map<int64_t, int> count;
  for (int64_t row : rows)
    ++count[row];
  return count;
}

TEST(RowSelection, AWeightIsHowOftenARowComes) {
  // Half of the rows of a (0 to 99) occur twice, the other half three times.
  // Half of the rows of b (100 to 299) occur once.
  auto count = times(select({{"a", 100, 2.5}, {"b", 200, 0.5}}).training);
  int three = 0, once = 0;
  for (int64_t row = 0; row < 100; ++row) {
    EXPECT_GE(count[row], 2);
    three += count[row] == 3;
  }
  for (int64_t row = 100; row < 300; ++row) {
    EXPECT_LE(count[row], 1);
    once += count[row];
  }
  EXPECT_EQ(three, 50);
  EXPECT_EQ(once, 100);
}

TEST(RowSelection, TheSeedDrawsAndNothingElse) {
  const std::vector<RowSource> sources = {{"a", 100, 0.5}, {"b", 100, 0.5}};
  const auto first = select(sources, 20), again = select(sources, 20);
  EXPECT_EQ(first.training, again.training);
  EXPECT_EQ(first.validation, again.validation);
  const auto other = select(sources, 20, 43);
  EXPECT_NE(first.training, other.training);
  EXPECT_NE(first.validation, other.validation);
  // The two files are sampled with different random numbers.
  const auto plain = select(sources);
  std::vector<int64_t> a, b;
  for (int64_t row : plain.training)
    row < 100 ? a.push_back(row) : b.push_back(row - 100);
  EXPECT_EQ(a.size(), b.size());
  EXPECT_NE(a, b);
}

TEST(RowSelection, ValidationAndTrainingHaveNoRowInCommon) {
  for (double size : {0.05, 0.5, 1.0, 30.0}) {
    const auto chosen = select({{"a", 30, 2}, {"b", 31, 1}}, size);
    std::set<int64_t> all(chosen.validation.begin(), chosen.validation.end());
    // ceil(0.05 * 61) = 4 and ceil(0.5 * 61) = 31 rows are held out.
    EXPECT_EQ(all.size(), size < 0.1 ? 4u : size < 1 ? 31u : size_t(size));
    for (const auto &[row, count] : times(chosen.training)) {
      EXPECT_EQ(count, row < 30 ? 2 : 1);
      EXPECT_TRUE(all.insert(row).second) << row;
    }
    EXPECT_EQ(all.size(), 61u);
  }
}

TEST(RowSelection, RefusesPartsThatAreEmpty) {
  EXPECT_EQ(errorOf({{"a", 10, 1}, {"b", 5, 1}}, 15),
            "--val-set-size 15 takes 15 rows for validation, but the data has "
            "15. Fix: give a smaller value, which leaves rows for training");
  EXPECT_EQ(errorOf({{"a", 1, 1}}, 0.1),
            "--val-set-size 0.1 takes 1 rows for validation, but the data has "
            "1. Fix: give a smaller value, which leaves rows for training");
  EXPECT_EQ(errorOf({{"a", 10, 1}, {"b", 5, 0.05}}, 0),
            "'b': the weight 0.05 keeps none of its 5 rows. Fix: give a larger "
            "weight");
}

TEST(RowSelection, RefusesMoreRowsThan32BitsCount) {
  constexpr int64_t kHalf = 2'000'000'000;
  EXPECT_TRUE(checkRowNumbers(std::vector<RowSource>{{"a", kHalf, 1.5},
                                                     {"b", kHalf / 2, 0.1}})
                  .isOk());
  EXPECT_EQ(checkRowNumbers(
                std::vector<RowSource>{{"a", kHalf, 1}, {"b", kHalf + 1, 1}})
                .message(),
            "'b': with its 2000000001 rows times 1, the data has more than "
            "4000000000 rows. Fix: give a smaller weight or fewer files");
}

/// Two files with the rows [1 2 3] [4 5] and [6 7] [8 9 10]; the second file is
/// used twice per epoch.
TEST(RowSelection, AMixReadsTheRowsOfEachFile) {
  CompiledVariants shape;
  shape.batch = 1;
  shape.lengths = {4};
  shape.vocabSize = 16;
  DataMix mix;
  mix.files = {{writeRows("one.safetensors", {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5},
                          {0, 3, 5})},
               {writeRows("two.safetensors", {6, 7, 8, 9, 10},
                          {6, -100, 8, 9, 10}, {0, 2, 5}),
                2}};
  // Rows without labels are included.
  auto parts = openMix(mix, shape, {});
  ASSERT_TRUE(parts.isOk()) << parts.status().message();
  Dataset &data = *parts->training;
  EXPECT_FALSE(parts->validation);
  ASSERT_EQ(data.rows(), 6);
  std::map<int32_t, int> firsts;
  for (int64_t i = 0; i < 6; ++i) {
    MicroBatch batch;
    ASSERT_TRUE(data.readInOrder(i, batch).isOk());
    ++firsts[batch.ids[0]];
  }
  EXPECT_EQ(firsts, (std::map<int32_t, int>{{1, 1}, {4, 1}, {6, 2}, {8, 2}}));
  // An epoch has 3 + 2 + 2 (2 + 3) = 15 tokens in 6 sequences of 4.
  EXPECT_NEAR(*data.paddingShare({}), 1 - 15.0 / 24, 1e-12);
}

TEST(RowSelection, AFileOfWholeMicroBatchesIsNotMixed) {
  const Ints ids = {1, 2, 3, 4};
  const std::string path =
      write("whole.safetensors", {item("input_ids", ids, {1, 1, 4}),
                                  item("labels", ids, {1, 1, 4})});
  CompiledVariants shape;
  shape.batch = 1;
  shape.lengths = {4};
  shape.vocabSize = 16;
  DataMix once{{{path}}};
  auto plain = openMix(once, shape, {});
  ASSERT_TRUE(plain.isOk());
  EXPECT_FALSE(plain->training->paddingShare({}));
  once.validationSize = 1;
  for (const DataMix &mix : {DataMix{{{path, 2}}}, DataMix{{{path}, {path}}},
                             once})
    EXPECT_NE(openMix(mix, shape, {}).status().message().find(
                  "has whole micro-batches, which do not support"),
              std::string::npos);
}

} // namespace
} // namespace qlora
