// SPDX-License-Identifier: MIT

// Token files: order, targets, and every kind of invalid file.

#include "tests/runtime/Data/DataFiles.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>

using namespace qlora;

TEST(TokenFile, IsReadInOrderAndStartsOver) {
  auto path = write("tokens", {item("input_ids", {1, 2, 3, 4, 5, 6}, {3, 1, 2}),
                               item("labels", {1, 2, 3, 4, 5, 6}, {3, 1, 2})});
  auto data = open(path, {1, {2}, 10});
  MicroBatch batch;
  // Step 1 with 2 micro-batches per step reads micro-batches 2 and 3; 3 wraps
  // around to 0.
  EXPECT_TRUE(data->read(1, 0, {2, 1}, batch).isOk());
  EXPECT_EQ(batch.ids, (Ints{5, 6}));
  EXPECT_EQ(batch.targets, (Ints{6, kNoLabel}));
  EXPECT_EQ(batch.positions, (Ints{0, 1}));
  EXPECT_EQ(batch.segments, (Ints{1, 1}));
  EXPECT_TRUE(data->read(1, 1, {1, 2}, batch).isOk());
  EXPECT_EQ(batch.ids, (Ints{1, 2}));
  EXPECT_EQ(data->schedule().stepsPerEpoch(2), 2);
  EXPECT_DOUBLE_EQ(data->schedule().epochAfter(3, 2), 2.0);
}

// If the fingerprint were computed differently, existing checkpoints would no
// longer match their data.
TEST(TokenFile, IsKnownByItsTokensAlone) {
  const Ints ids = {1, 2, 3, 4}, labels = {1, 2, -100, 4};
  auto data = open(write("known", {item("input_ids", ids, {2, 1, 2}),
                                   item("labels", labels, {2, 1, 2})}),
                   {1, {2}, 10});
  ContentHash content, expected, own;
  for (const Ints &part : {ids, labels, Ints(), Ints()})
    content.add({reinterpret_cast<const char *>(part.data()), part.size() * 4});
  expected.add(std::vector<int64_t>{2, 2}); // lengths
  expected.add(content.finish());
  data->identify(own);
  EXPECT_EQ(own.finish(), expected.finish());
}

TEST(TokenFile, TargetsStayInTheirSegment) {
  auto path =
      write("packed", {item("input_ids", {1, 2, 3, 4, 5, 0}, {1, 1, 6}),
                       item("labels", {-100, 2, 9, 4, 5, 8}, {1, 1, 6}),
                       item("segment_ids", {1, 1, 2, 2, 2, 0}, {1, 1, 6})});
  auto data = open(path, {1, {6}, 10});
  MicroBatch batch;
  EXPECT_TRUE(data->read(0, 0, {}, batch).isOk());
  EXPECT_EQ(batch.targets, (Ints{2, -100, 4, 5, -100, -100}));
  EXPECT_EQ(batch.positions, (Ints{0, 1, 0, 1, 2, 0}));
  EXPECT_EQ(batch.labelCount(), 3);
}

TEST(TokenFile, Errors) {
  Ints good = {1, 2, 3, 4};
  auto ids = item("input_ids", good, {1, 2, 2});
  Ints far = {1, 2, 3, 10}, none(4, -100);
  auto path = write("t", {ids, item("labels", good, {1, 2, 2})});
  EXPECT_EQ(errorOf(path, {2, {3, 4}, 10}),
            "'' has micro-batches of 2 x 2 tokens, but the program was "
            "compiled for 2 x 3 or 4; compile again with "
            "--per-device-train-batch-size 2 --max-length 2");
  EXPECT_EQ(errorOf(path, {2, {2}, 4}),
            "'': micro-batch 0, row 1, position 1: token id 4 is outside the "
            "model's vocabulary [0, 4). Fix: use the model's tokenizer");
  path = write("t", {ids, item("labels", far, {1, 2, 2})});
  EXPECT_EQ(errorOf(path, {2, {2}, 10}),
            "'': micro-batch 0, row 1, position 1: label 10 is neither -100 "
            "nor inside the model's vocabulary [0, 10)");
  path = write("t", {ids, item("labels", none, {1, 2, 2})});
  EXPECT_EQ(errorOf(path, {2, {2}, 10}),
            "'' has no token in the loss: each label is -100, or the first of "
            "its row");
  path = write("t", {ids, item("labels", good, {2, 2})});
  EXPECT_EQ(errorOf(path, {2, {2}, 10}),
            "'': labels has the shape [2, 2], but input_ids has [1, 2, 2]");
  path = write("t", {ids});
  EXPECT_FALSE(openDataset(path, {2, {2}, 10}, {}).isOk());
  Ints outside = {0, 1, 0, 2};
  path = write("t", {ids, item("labels", good, {1, 2, 2}),
                     item("position_ids", outside, {1, 2, 2})});
  EXPECT_EQ(errorOf(path, {2, {2}, 10}),
            "'': micro-batch 0, row 1, position 1: position_ids has 2, which "
            "is outside [0, 2)");
  const auto withSegments = [&](Ints segments) {
    return errorOf(write("t", {ids, item("labels", good, {1, 2, 2}),
                               item("segment_ids", segments, {1, 2, 2})}),
                   {2, {2}, 10});
  };
  EXPECT_EQ(
      withSegments({1, 1, 1, -1}),
      "'': micro-batch 0, row 1, position 1: segment_ids has -1, which is "
      "below 0");
  // One row of four tokens.
  ids = item("input_ids", good, {1, 1, 4});
  path = write("t", {ids, item("labels", good, {1, 1, 4}),
                     item("segment_ids", {2, 0, 1, 2}, {1, 1, 4})});
  EXPECT_EQ(errorOf(path, {1, {4}, 10}),
            "'': micro-batch 0, row 0, position 3: segment_ids has 2 again "
            "after other segments; tokens of a segment must be consecutive");
  EXPECT_FALSE(openDataset("/nonexistent", {2, {2}, 10}, {}).isOk());
}

/// Returns the status of reading a file after `change` has changed it. The file
/// has two micro-batches of 4,096 tokens.
static Status
readAfter(const std::function<void(const std::string &)> &change) {
  const Ints values(8192, 1);
  const std::string path =
      write("changed", {item("input_ids", values, {2, 1, 4096}),
                        item("labels", values, {2, 1, 4096})});
  auto data = open(path, {1, {4096}, 10});
  MicroBatch batch;
  EXPECT_TRUE(data->read(0, 0, {}, batch).isOk());
  change(path);
  return data->read(1, 0, {}, batch);
}

/// Overwrites the last value of the file, which is a label.
static void writeLast(const std::string &path, int32_t label) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-4, std::ios::end);
  file.write(reinterpret_cast<const char *>(&label), sizeof(label));
}

TEST(Dataset, FilesThatChangeWhileTheyAreReadAreErrors) {
  EXPECT_TRUE(readAfter([](const std::string &) {}).isOk());
  Status status = readAfter([](const std::string &path) {
    std::filesystem::resize_file(path, 1024);
  });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("tensor 'input_ids': it ends at byte"),
            status.message().npos)
      << status.message();
  status = readAfter([](const std::string &path) { writeLast(path, 10); });
  EXPECT_NE(status.message().find("micro-batch 1, row 0, position 4095: label "
                                  "10 is neither -100 nor"),
            status.message().npos)
      << status.message();
  status = readAfter([](const std::string &path) { writeLast(path, -100); });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(
      status.message().find("row 1 has changed since the run started"),
      status.message().npos)
      << status.message();
}
