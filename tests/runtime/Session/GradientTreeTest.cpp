// SPDX-License-Identifier: MIT

// The reduction tree does not depend on the number of ranks. The test sums
// values for which any other order gives another result.

#include "runtime/Session/GradientTree.h"

#include "tests/runtime/DemoTables.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"

#include <mutex>
#include <random>

using namespace qlora;

namespace {

TEST(GradientTree, TakesTurnsByTheBitsFromTheLast) {
  EXPECT_EQ(turnsOf(1), (std::vector<int64_t>{0}));
  EXPECT_EQ(turnsOf(3), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(turnsOf(8), (std::vector<int64_t>{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(turnsOf(6), (std::vector<int64_t>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(leafLength(12), 3);
}

/// Returns element `i` of a micro-batch's gradient.
float gradientOf(int64_t microBatch, size_t i) {
  std::mt19937 random(static_cast<unsigned>(microBatch * 1000) +
                      static_cast<unsigned>(i));
  return std::uniform_real_distribution<float>(-1, 1)(random) *
         (microBatch % 2 ? 1.0f : 1e-4f);
}

/// Returns the sum in the order that GradientTree.h describes.
float sumOf(int64_t first, int64_t stride, int64_t members, size_t i) {
  if (members % 2 == 0)
    return sumOf(first, 2 * stride, members / 2, i) +
           sumOf(first + stride, 2 * stride, members / 2, i);
  float sum = 0;
  for (int64_t member = 0; member < members; ++member)
    sum += gradientOf(first + member * stride, i);
  return sum;
}

/// Returns a rank's gradient arena after a step of `count` micro-batches per
/// rank.
std::vector<float> runStep(const LoadedModule &module, RankGroup &group,
                           int64_t count) {
  auto device = createDevice("cpu", {}).value();
  EXPECT_TRUE(device->load(module, nullptr).isOk());
  const uint32_t arena = *module.arena(QLORA_ARENA_GRADIENT);
  std::vector<float> values(module.arenaBytes(QLORA_ARENA_GRADIENT) / 4);
  const std::span bytes(reinterpret_cast<uint8_t *>(values.data()),
                        4 * values.size());
  GradientTree tree(count, module, *device, group);
  for (int64_t k : turnsOf(count)) {
    EXPECT_TRUE(device->read(arena, 0, bytes).isOk());
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += gradientOf(k * group.size() + group.rank(), i);
    EXPECT_TRUE(device->write(arena, 0, bytes).isOk());
    EXPECT_TRUE(tree.endTurn().isOk());
  }
  EXPECT_TRUE(tree.finish().isOk());
  EXPECT_TRUE(device->read(arena, 0, bytes).isOk());
  return values;
}

TEST(GradientTree, IsOneWhateverTheRanks) {
  DemoTables tables;
  // The number of elements is not a multiple of the number of ranks.
  const uint64_t elements = 18;
  ASSERT_EQ(tables.arenas[kDemoGradient].bytes, 4 * elements);
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  for (int64_t count : {1, 4, 24}) {
    std::vector<float> wanted;
    for (size_t i = 0; i < elements; ++i)
      wanted.push_back(sumOf(0, 1, 4 * count, i));
    for (int ranks : {1, 2, 4}) {
      std::mutex mutex;
      runJob(ranks, /*shards=*/1, [&](RankGroup &group) {
        const auto found = runStep(*module, group, 4 * count / ranks);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(found, wanted) << ranks << " ranks";
      });
    }
  }
}

TEST(GradientTree, KeepsSumsThatWaitAndWhatRanksSend) {
  DemoTables tables;
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const uint64_t bytes = module->arenaBytes(QLORA_ARENA_GRADIENT);
  EXPECT_EQ(GradientTree::pendingBytes(3, *module, 1), 0u);
  EXPECT_EQ(GradientTree::pendingBytes(8, *module, 1), 4 * bytes);
  EXPECT_EQ(GradientTree::pendingBytes(1, *module, 8), 2 * bytes);
}

TEST(GradientTree, IsOfPairs) {
  DemoTables tables;
  tables.header.mesh.fsdp = 2;
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  EXPECT_EQ(GradientTree::check(*module, 6).message(),
            "--reproducible-reductions needs a power of two as the number of "
            "ranks, not 6. Fix: start 4");
  EXPECT_EQ(GradientTree::check(*module, 4).message(),
            "--reproducible-reductions needs ranks that each compute the "
            "gradients of whole rows, but 'demo' was compiled with --parallel "
            "fsdp=2. Fix: compile without it");
  DemoTables shared;
  shared.header.mesh.ep = 4;
  module = shared.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  EXPECT_EQ(GradientTree::check(*module, 4).message(),
            "--reproducible-reductions needs ranks that each compute the "
            "gradients of whole rows, but 'demo' was compiled with --parallel "
            "ep=4. Fix: compile without it");
}

} // namespace
