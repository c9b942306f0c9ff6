// SPDX-License-Identifier: MIT

// Prompts and references of rows and of segments.

#include "runtime/Data/AnswerRows.h"
#include "tests/runtime/Data/DataFiles.h"

using namespace qlora;

static std::vector<AnswerRow> answersIn(const Dataset &data, int64_t row) {
  auto rows = readAnswerRows(data, row);
  EXPECT_TRUE(rows.isOk()) << rows.status().message();
  return std::move(rows).value();
}

TEST(AnswerRows, AreTheLastLabelledRun) {
  // Two turns; a whole text; an answer that unlabelled tokens follow.
  const auto path = writeRows(
      "answers", {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4},
      {-100, 2, -100, -100, 5, 6, 7, 8, 9, -100, 2, 3, -100}, {0, 6, 9, 13});
  const auto data = open(path, {1, {8}, 10});
  const std::vector<std::pair<Ints, Ints>> expected = {
      {{1, 2, 3, 4}, {5, 6}}, {{7}, {8, 9}}, {{1}, {2, 3}}};
  ASSERT_EQ(data->rows(), 3);
  for (int64_t row = 0; row < 3; ++row) {
    const auto answers = answersIn(*data, row);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].prompt, expected[size_t(row)].first);
    EXPECT_EQ(answers[0].reference, expected[size_t(row)].second);
  }
}

/// Each segment of a token file is a row, except padding and segments without
/// labels.
TEST(AnswerRows, AreThoseOfSegments) {
  const auto path = write(
      "answer-segments",
      {item("input_ids", {1, 2, 3, 4, 5, 6, 7, 0}, {1, 1, 8}),
       item("labels", {-100, -100, 3, -100, -100, -100, 7, -100}, {1, 1, 8}),
       item("segment_ids", {1, 1, 1, 2, 2, 3, 3, 0}, {1, 1, 8})});
  const auto answers = answersIn(*open(path, {1, {8}, 10}), 0);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].prompt, (Ints{1, 2}));
  EXPECT_EQ(answers[0].reference, (Ints{3}));
  EXPECT_EQ(answers[1].prompt, (Ints{6}));
  EXPECT_EQ(answers[1].reference, (Ints{7}));
}

TEST(AnswerRows, EndBeforeTheFirstEndToken) {
  const Ints answer = {5, 6, 2, 7}, ends = {3, 2};
  const auto without = withoutEnd(answer, ends);
  EXPECT_EQ(Ints(without.begin(), without.end()), (Ints{5, 6}));
  EXPECT_EQ(withoutEnd(answer, {}).size(), 4u);
  EXPECT_TRUE(withoutEnd({}, ends).empty());
}
