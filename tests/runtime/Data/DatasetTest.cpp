// SPDX-License-Identifier: MIT

// Files of rows: order, padding, packing, counts, and every kind of invalid
// file.

#include "tests/runtime/Data/DataFiles.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "runtime/Data/RowPacking.h"

using namespace qlora;

/// For each shape, reads the batches of two steps and compares their counts
/// with the counts that the dataset predicts.
static void expectCountsOf(Dataset &data) {
  MicroBatch batch;
  for (const StepShape &shape : {StepShape{1, 1}, {2, 1}, {1, 2}, {2, 3}})
    for (int64_t step = 0; step < 2; ++step) {
      double labels = 0, filled = 0;
      const int64_t rounds =
          data.schedule().microBatches(step, shape) / shape.ranks;
      for (int64_t k = 0; k < rounds; ++k) {
        std::set<BatchShape> shapes;
        int64_t most = 0;
        for (int64_t rank = 0; rank < shape.ranks; ++rank) {
          const int64_t index = k * shape.ranks + rank;
          EXPECT_TRUE(data.read(step, index, shape, batch).isOk());
          EXPECT_EQ(data.labelsOf(step, index, shape), batch.labelCount());
          shapes.insert({batch.batch, batch.length});
          most = std::max(most, batch.labelCount());
          labels += double(batch.labelCount());
          filled += std::ranges::any_of(batch.segments,
                                        [](int32_t id) { return id != 0; });
        }
        EXPECT_EQ(data.mostLabels(step, k, shape), std::nullopt);
        if (k + 1 < rounds)
          continue;
        const std::optional<int64_t> said = data.mostLabelsOfLast(step, shape);
        EXPECT_EQ(said.has_value(), shapes.size() == 1);
        EXPECT_EQ(said.value_or(most), most);
      }
      EXPECT_DOUBLE_EQ(data.meanLabels(step, shape), labels / filled);
    }
}

TEST(Dataset, KnowsTheLabelsOfAllRanks) {
  const Ints ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3};
  const Ints labels = {1, 2, -100, 4, 5, -100, -100, 8, 9, -100, 2, 3};
  const auto segmented = write(
      "labels", {item("input_ids", ids, {3, 1, 4}),
                 item("labels", labels, {3, 1, 4}),
                 item("segment_ids", {1, 1, 1, 2, 1, 2, 2, 2, 1, 1, 0, 0},
                      {3, 1, 4})});
  expectCountsOf(*open(segmented, {1, {4}, 10}));
  const auto rows = writeRows("label-rows", ids, labels, {0, 1, 3, 7, 9, 12});
  expectCountsOf(*open(rows, {1, {2, 4}, 10}));
  expectCountsOf(*open(rows, {2, {2, 4}, 10}));
  expectCountsOf(*open(rows, {2, {2, 4}, 10}, {.seed = 1, .packing = true}));
  expectCountsOf(*open(rows, {2, {2, 4}, 10, {2, 4, 8}}));
}

static std::string fiveRows() {
  // Row r has r + 1 tokens, and all of them have the id r + 1.
  Ints ids;
  std::vector<int64_t> offsets = {0};
  for (int32_t r = 0; r < 5; ++r) {
    ids.insert(ids.end(), r + 1, r + 1);
    offsets.push_back(static_cast<int64_t>(ids.size()));
  }
  return writeRows("five", ids, ids, offsets);
}

TEST(RowsFile, InOrderIsPaddedToTheShortestLengthThatFits) {
  auto data = open(fiveRows(), {2, {2, 4, 8}, 10});
  EXPECT_EQ(data->schedule().count(), 3);
  EXPECT_EQ(data->rows(), 5);
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  EXPECT_EQ(batch.length, 2);
  EXPECT_EQ(batch.ids, (Ints{1, 0, 2, 2}));
  EXPECT_EQ(batch.targets, (Ints{-100, -100, 2, -100}));
  EXPECT_EQ(batch.segments, (Ints{1, 0, 1, 1}));
  EXPECT_EQ(batch.longestRow(), 2);
  // The last micro-batch has row 4 and a sequence of padding.
  EXPECT_TRUE(data->readInOrder(2, batch).isOk());
  EXPECT_EQ(batch.length, 8);
  EXPECT_EQ(batch.labelCount(), 4);
  EXPECT_EQ(batch.segments[8], 0);
  EXPECT_TRUE(data->readInOrder(3, batch).isOk());
  EXPECT_EQ(batch.length, 2);
  EXPECT_EQ(batch.labelCount(), 0);
  EXPECT_EQ(batch.longestRow(), 1);
  // Equal segment ids in different sequences are different segments.
  batch.length = 4;
  batch.segments = {1, 1, 1, 2, 2, 2, 0, 0};
  EXPECT_EQ(batch.longestRow(), 3);
  batch.positions = {0, 1, 2, 0, 0, 1, 0, 1};
  EXPECT_EQ(batch.segmentLengths(), (Ints{3, 3, 3, 1, 2, 2, 0, 0}));
}

/// Returns the resident bytes of this process without mapped files.
static int64_t ownBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kilobytes = 0;
  while (status >> word)
    if (word == "RssAnon:")
      status >> kilobytes;
  return kilobytes * 1024;
}

TEST(Dataset, TokensStayInTheirFile) {
  // Rows of 1,024 tokens: 8 MiB of ids and 8 MiB of labels.
  const int64_t rows = 2 << 10, tokens = 1 << 10;
  std::string path;
  {
    const Ints ids(static_cast<size_t>(rows * tokens), 1);
    std::vector<int64_t> offsets;
    for (int64_t row = 0; row <= rows; ++row)
      offsets.push_back(row * tokens);
    path = writeRows("large", ids, ids, offsets);
  }
  [[maybe_unused]] const int64_t before = ownBytes();
  auto data = open(path, {1, {tokens}, 10});
  // Sanitizers need more memory for data that was read: they have shadow memory
  // and retain freed windows.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(ownBytes() - before, 1 << 20);
#endif
  MicroBatch batch;
  EXPECT_TRUE(data->read(0, 0, {}, batch).isOk());
  EXPECT_EQ(batch.labelCount(), tokens - 1);
}

TEST(RowsFile, EveryEpochHasEveryRowOnce) {
  auto data = open(fiveRows(), {1, {8}, 10}, {3, false});
  std::set<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    Ints seen;
    int64_t labels = 0;
    for (int64_t step = 0; step < 3; ++step) // 5 rows, 2 per step
      for (int64_t index = 0; index < 2; ++index) {
        MicroBatch batch;
        EXPECT_TRUE(data->read(epoch * 3 + step, index, {2, 1}, batch).isOk());
        labels += batch.labelCount();
        if (batch.segments[0])
          seen.push_back(batch.ids[0]);
      }
    orders.insert(seen);
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, (Ints{1, 2, 3, 4, 5}));
    EXPECT_EQ(labels, 0 + 1 + 2 + 3 + 4);
  }
  EXPECT_GT(orders.size(), 1u);
  EXPECT_DOUBLE_EQ(data->schedule().epochAfter(3, 2), 1.0);
  EXPECT_DOUBLE_EQ(data->schedule().epochAfter(4, 2), 1.4);
}

TEST(RowsFile, SequentialEpochsHaveTheOrderOfTheFile) {
  auto data = open(fiveRows(), {1, {8}, 10}, {.seed = 3, .shuffles = false});
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    for (int64_t step = 0; step < 5; ++step) {
      MicroBatch batch;
      ASSERT_TRUE(data->read(epoch * 5 + step, 0, {1, 1}, batch).isOk());
      EXPECT_EQ(batch.ids[0], step + 1);
    }
}

TEST(RowsFile, PackingKeepsEveryRowInItsOwnSegment) {
  auto data = open(fiveRows(), {1, {6}, 10}, {0, true});
  // First-fit packing of row lengths into 6 tokens gives {1, 2, 3}, {4}, {5}.
  EXPECT_EQ(data->schedule().count(), 3);
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  EXPECT_EQ(batch.ids, (Ints{1, 2, 2, 3, 3, 3}));
  EXPECT_EQ(batch.segments, (Ints{1, 2, 2, 3, 3, 3}));
  EXPECT_EQ(batch.positions, (Ints{0, 0, 1, 0, 1, 2}));
  EXPECT_EQ(batch.targets, (Ints{-100, 2, -100, 3, 3, -100}));
}

/// Returns every row of all steps as {step, token id, number of labels}.
static std::multiset<std::array<int64_t, 3>> rowsOf(Dataset &data,
                                                    const StepShape &shape,
                                                    int64_t steps) {
  std::multiset<std::array<int64_t, 3>> seen;
  MicroBatch batch;
  for (int64_t step = 0; step < steps; ++step)
    for (int64_t i = 0;
         i < data.schedule().microBatches(step, shape); ++i) {
      EXPECT_TRUE(data.read(step, i, shape, batch).isOk());
      std::map<std::pair<int64_t, int32_t>, int64_t> labels;
      for (size_t t = 0; t < batch.ids.size(); ++t)
        if (batch.segments[t] != 0)
          labels[{static_cast<int64_t>(t) / batch.length * 100 +
                      batch.segments[t],
                  batch.ids[t]}] += batch.targets[t] != kNoLabel;
      for (const auto &[row, count] : labels)
        seen.insert({step, row.second, count});
    }
  return seen;
}

TEST(RowsFile, StepPackingHasTheRowsOfPaddedOnes) {
  const CompiledVariants shape = {2, {5}, 10, {4, 6, 10}, {1, 0.1}};
  for (const StepShape &step : {StepShape{1, 1}, {2, 1}, {1, 2}, {3, 2}}) {
    auto padded = open(fiveRows(), shape, {7, false, false});
    auto packed = open(fiveRows(), shape, {7, false, true});
    EXPECT_EQ(rowsOf(*packed, step, 7), rowsOf(*padded, step, 7));
    EXPECT_EQ(packed->schedule().count(), padded->schedule().count());
    EXPECT_EQ(packed->schedule().epochAfter(3, step.count()),
              padded->schedule().epochAfter(3, step.count()));
  }
}

/// Expects that the schedule predicts the batches that are read.
static void expectForeseen(Dataset &data, const StepShape &shape) {
  MicroBatch batch;
  for (int64_t step = 0; step < 7; ++step)
    for (int64_t i = 0;
         i < data.schedule().microBatches(step, shape); ++i) {
      EXPECT_TRUE(data.read(step, i, shape, batch).isOk());
      EXPECT_EQ(data.schedule().at(step, i, shape).shape,
                (BatchShape{batch.batch, batch.length}));
    }
  for (int64_t number = 0; number <= data.schedule().countInOrder(); ++number) {
    EXPECT_TRUE(data.readInOrder(number, batch).isOk());
    EXPECT_EQ(data.schedule().inOrder(number, {}).shape,
              (BatchShape{batch.batch, batch.length}));
  }
}

TEST(Dataset, ShapesAreKnownWithoutTokens) {
  const Ints ids(6, 1);
  auto path = write("shapes", {item("input_ids", ids, {3, 1, 2}),
                               item("labels", ids, {3, 1, 2})});
  const CompiledVariants shape = {2, {2, 4, 5}, 10, {4, 6, 10}, {1, 0.1}};
  for (const StepShape &step : {StepShape{1, 1}, {2, 1}, {1, 2}, {3, 2}}) {
    expectForeseen(*open(path, {1, {2}, 10}), step);
    for (const bool stepPacking : {false, true})
      expectForeseen(*open(fiveRows(), shape, {7, true, stepPacking}), step);
    expectForeseen(*open(fiveRows(), shape, {7, false, true}), step);
  }
}

TEST(RowsFile, StepPackingMicroBatchesAreOneLineOfABucket) {
  auto data = open(fiveRows(), {2, {5}, 10, {4, 8, 10}, {}}, {0, false, true});
  MicroBatch batch;
  EXPECT_EQ(data->schedule().countInOrder(), 2); // {1, 2, 3, 4} and {5}
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  EXPECT_EQ(batch.ids, (Ints{1, 2, 2, 3, 3, 3, 4, 4, 4, 4}));
  EXPECT_EQ(batch.segments, (Ints{1, 2, 2, 3, 3, 3, 4, 4, 4, 4}));
  EXPECT_EQ(batch.positions, (Ints{0, 0, 1, 0, 1, 2, 0, 1, 2, 3}));
  EXPECT_TRUE(data->readInOrder(1, batch).isOk());
  EXPECT_EQ(batch.batch, 1);
  EXPECT_EQ(batch.ids, (Ints{5, 5, 5, 5, 5, 0, 0, 0}));
  EXPECT_TRUE(data->readInOrder(2, batch).isOk());
  EXPECT_EQ(batch.length, 4);
  EXPECT_EQ(batch.labelCount(), 0);
  // All 15 tokens of three padded micro-batches fit into two packed ones.
  EXPECT_EQ(data->schedule().microBatches(0, {3, 1}), 2);
  EXPECT_EQ(data->schedule().microBatches(0, {1, 3}), 3);
}

/// Returns whether the first micro-batch is marked as having one segment per
/// sequence.
bool saysOneSegment(std::unique_ptr<Dataset> data) {
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  return batch.hasOneSegment;
}

TEST(Dataset, KnowsWhereLinesHaveOneSegment) {
  EXPECT_TRUE(saysOneSegment(open(fiveRows(), {2, {5}, 10})));
  EXPECT_FALSE(saysOneSegment(open(fiveRows(), {1, {6}, 10}, {0, true})));
  const CompiledVariants buckets = {2, {5}, 10, {4, 8, 10}, {}};
  EXPECT_FALSE(saysOneSegment(open(fiveRows(), buckets)));
  EXPECT_TRUE(
      saysOneSegment(open(fiveRows(), buckets, {0, false, false})));
  const Ints ids = {1, 2, 3, 4};
  const auto batches = [&](std::initializer_list<int32_t> segments) {
    return segments.size()
               ? write("segments", {item("input_ids", ids, {1, 1, 4}),
                                    item("labels", ids, {1, 1, 4}),
                                    item("segment_ids", segments, {1, 1, 4})})
               : write("plain", {item("input_ids", ids, {1, 1, 4}),
                                 item("labels", ids, {1, 1, 4})});
  };
  EXPECT_TRUE(saysOneSegment(open(batches({}), {1, {4}, 10}, {0, true})));
  EXPECT_FALSE(saysOneSegment(open(batches({1, 1, 1, 0}), {1, {4}, 10})));
}

TEST(RowsFile, StepPackingNeedsBuckets) {
  EXPECT_EQ(
      open(fiveRows(), {2, {8}, 10, {4, 16}, {}})->schedule().countInOrder(),
      1);
  EXPECT_EQ(open(fiveRows(), {2, {8}, 10})->schedule().countInOrder(), 3);
  auto data = openDataset(fiveRows(), {2, {8}, 10}, {0, false, true});
  EXPECT_EQ(data.status().message(),
            "step_packing: the program was compiled without it. Fix: compile "
            "with --step-packing true");
}

/// Writes three pairs of answers with (1, 2), (3, 1) and (2, 2) tokens.
static std::string threePairs(const char *isPairs = "true") {
  const Ints ids = {1, 2, 2, 3, 3, 3, 4, 5, 5, 6, 6};
  return writeRows("pairs", ids, ids, {0, 1, 3, 6, 7, 9, 11},
                   {{"pairs", isPairs}});
}

TEST(RowsFile, PairsStayTogetherChosenBeforeRejected) {
  CompiledVariants shape = {4, {2, 4}, 10};
  shape.sides = 2;
  auto data = open(threePairs(), shape);
  EXPECT_EQ(data->rows(), 3);
  EXPECT_EQ(data->schedule().count(), 2);
  EXPECT_EQ(data->tokens(1), 4);
  EXPECT_EQ(data->length(1), 3);
  MicroBatch batch;
  EXPECT_TRUE(data->readInOrder(0, batch).isOk());
  EXPECT_EQ(batch.ids, (Ints{1, 0, 0, 0, 3, 3, 3, 0, 2, 2, 0, 0, 4, 0, 0, 0}));
  // The last micro-batch has one pair and empty sequences.
  EXPECT_TRUE(data->readInOrder(1, batch).isOk());
  EXPECT_EQ(batch.ids, (Ints{5, 5, 0, 0, 6, 6, 0, 0}));
  EXPECT_EQ(batch.segments, (Ints{1, 1, 0, 0, 1, 1, 0, 0}));
  expectCountsOf(*data);
}

TEST(RowsFile, PairsAreForProgramsOfPairs) {
  CompiledVariants shape = {4, {4}, 10};
  EXPECT_EQ(errorOf(threePairs(), shape),
            "'' has pairs of answers, but the program was compiled without "
            "--rl. Fix: compile with --rl dpo");
  shape.sides = 2;
  EXPECT_EQ(errorOf(threePairs("false"), shape),
            "'' has rows without a rejected answer, but the program was "
            "compiled with --rl dpo, cpo or orpo. Fix: make it with qlora-data "
            "--pairs, or compile without --rl");
  const Ints ids = {1, 1, 2, 3};
  EXPECT_EQ(
      errorOf(writeRows("odd", ids, ids, {0, 2, 3, 4}, {{"pairs", "true"}}),
              shape),
      "'' has pairs of answers, but an odd number of rows (3). Fix: make it "
      "again with qlora-data");
}

TEST(RowsFile, Errors) {
  EXPECT_EQ(errorOf(fiveRows(), {1, {4}, 10}),
            "'': row 4 has 5 tokens, but max_length is 4");
  EXPECT_EQ(errorOf(fiveRows(), {1, {8}, 5}),
            "'': row 4, position 0: token id 5 is outside the model's "
            "vocabulary [0, 5). Fix: use the model's tokenizer");
  Ints ids = {1, 2, 3};
  auto broken = "'': row_offsets does not increase from 0 to the 3 tokens of "
                "input_ids";
  for (std::vector<int64_t> offsets :
       {std::vector<int64_t>{0, 2}, {0, 4}, {1, 3}, {0, 2, 2, 3}, {0, -1, 3}})
    EXPECT_EQ(errorOf(writeRows("r", ids, ids, offsets), {1, {8}, 5}), broken);
  EXPECT_EQ(errorOf(writeRows("r", {}, {}, {0}), {1, {8}, 5}),
            "'' has no rows");
  Ints none = {-100, -100, -100};
  EXPECT_FALSE(
      openDataset(writeRows("r", ids, none, {0, 3}), {1, {8}, 5}, {}).isOk());
}

TEST(Dataset, ShufflesArePermutationsOfTheirArguments) {
  auto a = shuffledOrder(1000, 7, 0);
  EXPECT_EQ(a, shuffledOrder(1000, 7, 0));
  EXPECT_NE(a, shuffledOrder(1000, 7, 1));
  EXPECT_NE(a, shuffledOrder(1000, 8, 0));
  std::sort(a.begin(), a.end());
  std::vector<uint32_t> all(1000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(a, all);
  EXPECT_TRUE(shuffledOrder(0, 1, 1).empty());
}

TEST(Dataset, ShufflesAreFair) {
  std::map<std::vector<uint32_t>, int> seen;
  for (int64_t epoch = 0; epoch < 6000; ++epoch)
    ++seen[shuffledOrder(3, 1, epoch)];
  EXPECT_EQ(seen.size(), 6u);
  for (const auto &[order, times] : seen)
    EXPECT_NEAR(times, 1000, 150);
}

TEST(Dataset, FirstFitIsWhatTheLoopWouldDo) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 400; ++i)
    lengths.push_back(1 + i * 7919 % 97);
  std::vector<std::vector<uint32_t>> bins;
  std::vector<int64_t> room;
  for (size_t row = 0; row < lengths.size(); ++row) {
    size_t bin = 0;
    while (bin < room.size() && room[bin] < lengths[row])
      ++bin;
    if (bin == room.size()) {
      room.push_back(100);
      bins.emplace_back();
    }
    room[bin] -= lengths[row];
    bins[bin].push_back(static_cast<uint32_t>(row));
  }
  EXPECT_GT(bins.size(), 128u); // more than a block of the tree
  const PackedRows packed =
      packFirstFit(std::ssize(lengths), 100, [&](int64_t row) {
        return lengths[static_cast<size_t>(row)];
      });
  ASSERT_EQ(packed.firsts.size(), bins.size());
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    EXPECT_EQ(packed.firsts[bin], bins[bin].front());
    uint32_t before = bins[bin].back();
    for (uint32_t row : bins[bin]) {
      EXPECT_EQ(packed.before[row], before);
      before = row;
    }
  }
}

TEST(Dataset, RowMatchesCountSegments) {
  MicroBatch batch;
  batch.clear({1, 6});
  batch.segments = {1, 1, 2, 2, 3, 0};
  batch.targets = {5, -100, 6, 7, -100, -100};
  Ints correct = {1, 0, 1, 0, 0, 0};
  RowMatches matches = countRowMatches(batch, correct);
  EXPECT_EQ(matches.rows, 2);
  EXPECT_EQ(matches.matched, 1);
}
