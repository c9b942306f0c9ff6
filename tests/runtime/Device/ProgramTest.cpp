// SPDX-License-Identifier: MIT

// Inputs of a micro-batch on a context-parallel rank, and where its results are
// written.

#include "runtime/Device/Program.h"
#include "tests/runtime/DemoTables.h"
#include "tests/runtime/Device/FakeNccl.h"

#include <gtest/gtest.h>

#include <numeric>

namespace qlora {
namespace {

/// The step block that the program's only kernel received.
qlora_step_block seen;

/// Rank 1 of two context-parallel ranks. Micro-batches have two sequences; the
/// rank has four tokens of each sequence.
class SequenceShards : public testing::Test {
protected:
  SequenceShards() {
    tables.header.mesh.cp = 2;
    tables.arenas[kDemoInput].bytes = 256;
    tables.arenas[kDemoResult].bytes = 128;
    tables.bindings = {{QLORA_INPUT_IDS, kDemoInput, 0, 32},
                       {QLORA_INPUT_TARGETS, kDemoInput, 64, 32},
                       {QLORA_INPUT_POSITIONS, kDemoInput, 128, 32},
                       {QLORA_INPUT_SEGMENTS, kDemoInput, 192, 32},
                       {QLORA_RESULT_CORRECT, kDemoResult, 0, 32},
                       {QLORA_RESULT_LOSS_SUM, kDemoResult, 64, 4},
                       {QLORA_RESULT_LABEL_COUNT, kDemoResult, 68, 4}};
    for (const int entry : {kDemoEvaluate, kDemoAccumulate}) {
      tables.entries[entry].first_binding = 0;
      tables.entries[entry].binding_count = 7;
    }
    tables.entries[kDemoUpdate].first_binding = 7;
    tables.kernels[0].function = [](const qlora_kernel_args *args,
                                    int64_t begin, int64_t) {
      if (begin != 0)
        return;
      seen = *args->step;
      std::iota(static_cast<int32_t *>(args->buffers[2]),
                static_cast<int32_t *>(args->buffers[2]) + 16, 1);
    };
    all.own = 1;
    options.collectives[QLORA_GROUP_DP] = &all;
    options.collectives[QLORA_GROUP_CP] = &all;
    batch.clear({2, 8});
    std::iota(batch.ids.begin(), batch.ids.end(), 100);
    std::iota(batch.positions.begin(), batch.positions.end(), 0);
    std::ranges::fill(batch.segments, 1);
    // This rank has two labels of the first sequence and one of the second.
    for (const int labelled : {0, 1, 2, 4, 7, 15})
      batch.targets[labelled] = 1000 + labelled;
  }

  void load() {
    auto loaded = tables.load();
    ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
    module.emplace(std::move(loaded).value());
    device = std::move(createDevice("cpu", options)).value();
    const Status status = device->load(*module, nullptr);
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  std::vector<int32_t> input(uint64_t offset, size_t count) {
    std::vector<int32_t> values(count);
    EXPECT_TRUE(device
                    ->read(kDemoInput, offset,
                           {reinterpret_cast<uint8_t *>(values.data()),
                            values.size() * sizeof(int32_t)})
                    .isOk());
    return values;
  }
  std::vector<int32_t> evaluate(std::optional<int64_t> mostLabels) {
    Program program(*module, *device);
    LossSums sums;
    std::vector<int32_t> correct;
    const Status status =
        program.evaluate(batch, mostLabels, {}, sums, correct);
    EXPECT_TRUE(status.isOk()) << status.message();
    return correct;
  }

  using Numbers = std::vector<int32_t>;
  DemoTables tables;
  fake::TwoRanks all;
  DeviceOptions options;
  MicroBatch batch;
  std::optional<LoadedModule> module;
  std::unique_ptr<Device> device;
};

TEST_F(SequenceShards, AreWrittenAndReadAtTheirPlace) {
  load();
  EXPECT_EQ(evaluate(std::nullopt),
            Numbers({0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 8}));
  EXPECT_EQ(input(0, 8), Numbers({104, 105, 106, 107, 112, 113, 114, 115}));
  EXPECT_EQ(input(64, 8),
            Numbers({1004, -100, -100, 1007, -100, -100, -100, 1015}));
  EXPECT_EQ(input(128, 8), Numbers({4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(input(192, 8), Numbers(8, 1));
  EXPECT_EQ(seen.line_tokens, 4u);
  EXPECT_EQ(seen.line_parts, 2u);
  EXPECT_EQ(seen.line_part, 1u);
}

/// labelled_rows is the rank's own label count, or the given maximum over
/// ranks. It never exceeds the number of tokens of the cp shard.
TEST_F(SequenceShards, HaveTheirOwnLabels) {
  load();
  evaluate(std::nullopt);
  EXPECT_EQ(seen.labelled_rows, 3u);
  evaluate(6);
  EXPECT_EQ(seen.labelled_rows, 6u);
  evaluate(16);
  EXPECT_EQ(seen.labelled_rows, 8u);
}

TEST_F(SequenceShards, AreAllOfItWithoutOtherRanks) {
  tables.header.mesh.cp = 1;
  for (qlora_binding &binding : tables.bindings)
    binding.bytes = binding.bytes == 32 ? 64 : binding.bytes;
  options.collectives = {};
  load();
  Numbers all(16);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(evaluate(std::nullopt), all);
  EXPECT_EQ(input(0, 16), batch.ids);
  EXPECT_EQ(seen.labelled_rows, 6u);
  EXPECT_EQ(seen.line_tokens, 8u);
  EXPECT_EQ(seen.line_parts, 1u);
  EXPECT_EQ(seen.line_part, 0u);
}

/// line_tokens is 1 in entries without sequences, because kernels divide by it.
TEST_F(SequenceShards, HaveATokenInEntriesWithoutLines) {
  tables.kernels[2].function = [](const qlora_kernel_args *args, int64_t,
                                  int64_t) { seen = *args->step; };
  load();
  const Status status =
      runEntry(*device, *module, module->entries()[kDemoUpdate], {});
  ASSERT_TRUE(status.isOk()) << status.message();
  EXPECT_EQ(seen.line_tokens, 1u);
}

} // namespace
} // namespace qlora
