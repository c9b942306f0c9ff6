// SPDX-License-Identifier: MIT

// Rows of desirable and undesirable answers, followed by rows with mismatched
// answers.

#include "tests/runtime/Data/DataFiles.h"

using namespace qlora;

/// Writes the prompts {1, 2}, {4} and {8} with the answers {3}, {5, 6, 7} and
/// {9}.
static std::string threeAnswers(const Ints &desirable) {
  const Ints ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Ints labels = {-100, -100, 3, -100, 5, 6, 7, -100, 9};
  const std::vector<int64_t> offsets = {0, 3, 7, 9};
  return write("answers", {item("input_ids", ids, {9}),
                           item("labels", labels, {9}),
                           item("desirable", desirable, {3}),
                           {"row_offsets",
                            SafetensorsDtype::kI64,
                            {4},
                            {reinterpret_cast<const uint8_t *>(offsets.data()),
                             offsets.size() * 8}}});
}

/// Returns the shape of two rows, each with a mismatched sequence.
static CompiledVariants shapeOf(std::vector<int64_t> lengths) {
  CompiledVariants shape = {4, std::move(lengths), 10};
  shape.sides = 2;
  shape.isUnpaired = true;
  return shape;
}

TEST(KtoKlPairs, AreThoseOfTheRowsBefore) {
  auto data = open(threeAnswers({1, 0, 1}), shapeOf({4, 6}));
  EXPECT_EQ(data->rows(), 3);
  EXPECT_EQ(data->schedule().count(), 2);
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  // The third sequence has five tokens, more than the longest row of the file.
  EXPECT_EQ(batch.length, 6);
  EXPECT_EQ(batch.ids, (Ints{1, 2, 3, 0, 0, 0, 4, 5, 6, 7, 0, 0, //
                             1, 2, 5, 6, 7, 0, 4, 3, 0, 0, 0, 0}));
  constexpr int32_t o = kNoLabel;
  EXPECT_EQ(batch.targets, (Ints{o, 3, o, o, o, o, 5, 6, 7, o, o, o, //
                                 o, 5, 6, 7, o, o, 3, o, o, o, o, o}));
  EXPECT_EQ(batch.positions, (Ints{0, 1, 2, 0, 0, 0, 0, 1, 2, 3, 0, 0, //
                                   0, 1, 2, 3, 4, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(batch.segments, (Ints{1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, //
                                  1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(batch.desirable, (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(batch.mismatchedLines, 2);
  EXPECT_EQ(data->labelsOf(0, 0, {1, 1}) + data->labelsOf(0, 1, {1, 1}), 10);
}

TEST(KtoKlPairs, OfOneRowIsItsOwn) {
  auto data = open(threeAnswers({1, 0, 1}), shapeOf({6}));
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(1, batch).isOk());
  EXPECT_EQ(batch.ids, (Ints{8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                             8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.desirable, (std::vector<float>{1, 0, 0, 0}));
}

TEST(KtoKlPairs, AreCutWhereRowsAre) {
  auto data = open(threeAnswers({1, 0, 1}), shapeOf({4}));
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  EXPECT_EQ(Ints(batch.ids.begin() + 8, batch.ids.end()),
            (Ints{1, 2, 5, 6, 4, 3, 0, 0}));
  EXPECT_EQ(Ints(batch.targets.begin() + 8, batch.targets.begin() + 12),
            (Ints{kNoLabel, 5, 6, kNoLabel}));
}

TEST(KtoKlPairs, AreNotEvaluatedAsRows) {
  auto data = open(threeAnswers({1, 0, 1}), shapeOf({6}));
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  const RowMatches matches =
      countRowMatches(batch, Ints(batch.ids.size(), 1));
  EXPECT_EQ(matches.rows, 2);
  EXPECT_EQ(matches.labels, 4);
  EXPECT_EQ(matches.right, 4);
}

TEST(KtoKlPairs, AreNotThereWithoutADivergence) {
  CompiledVariants shape = shapeOf({4, 6});
  shape.batch = 2;
  shape.sides = 1;
  auto data = open(threeAnswers({1, 0, 1}), shape);
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  EXPECT_EQ(batch.ids, (Ints{1, 2, 3, 0, 4, 5, 6, 7}));
  EXPECT_EQ(batch.desirable, (std::vector<float>{1, 0}));
  EXPECT_EQ(batch.mismatchedLines, 0);
}

TEST(KtoKlPairs, AreInATokenFileAlready) {
  const Ints ids = {1, 2, 3, 4};
  const auto path = write("lines", {item("input_ids", ids, {1, 2, 2}),
                                    item("labels", ids, {1, 2, 2}),
                                    item("desirable", {1, 0}, {1, 2})});
  CompiledVariants shape = shapeOf({2});
  shape.batch = 2;
  auto data = open(path, shape);
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  EXPECT_EQ(batch.ids, ids);
  EXPECT_EQ(batch.desirable, (std::vector<float>{1, 0}));
  EXPECT_EQ(batch.mismatchedLines, 1);
  EXPECT_EQ(countRowMatches(batch, ids).rows, 1);
}

TEST(KtoKlPairs, Errors) {
  EXPECT_EQ(errorOf(threeAnswers({1, 2, 0}), shapeOf({6})),
            "'': desirable has 2 for row 1, which is neither 0 nor 1");
  EXPECT_EQ(errorOf(threeAnswers({1, 0, 0}), {2, {6}, 10}),
            "'' has desirable and undesirable answers, but the program was "
            "compiled without --rl kto. Fix: compile with --rl kto, or name "
            "another file");
  const Ints ids = {1, 2};
  EXPECT_EQ(errorOf(writeRows("no-answers", ids, ids, {0, 2}), shapeOf({6})),
            "'' does not say which answers are desirable, but the program was "
            "compiled with --rl kto. Fix: make it with qlora-data --unpaired, "
            "or compile without --rl");
}
