// SPDX-License-Identifier: MIT

// The null device checks a program's group sizes.

#include "runtime/Device/Device.h"
#include "runtime/Device/Program.h"
#include "tests/runtime/DemoTables.h"
#include "tests/runtime/Device/FakeNccl.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

/// Replaces the all-reduce by an all-gather over `group`, in which each rank
/// has half of the gradients and label count.
static void gatherHalves(DemoTables &tables, qlora_group group) {
  qlora_command &gather = tables.commands[5];
  gather.collective = QLORA_COLLECTIVE_ALL_GATHER;
  gather.group = static_cast<uint8_t>(group);
  gather.operand_count = 2;
  gather.first_operand = uint32_t(tables.operands.size());
  tables.operands.push_back(
      {kDemoGradient, QLORA_DTYPE_F32, QLORA_WRITE, 0, 0, 0, 0, 72, 0, 0});
  tables.operands.push_back(
      {kDemoTrainable, QLORA_DTYPE_F32, QLORA_READ, 0, 0, 0, 0, 36, 0, 0});
}

static Status loadOn(int ranks, DemoTables &tables) {
  QLORA_ASSIGN_OR_RETURN(LoadedModule module, tables.load());
  DeviceOptions options;
  options.ranks = ranks;
  QLORA_ASSIGN_OR_RETURN(auto device, createDevice("null", options));
  return device->load(module, nullptr);
}

TEST(Collectives, AreOfTheRanksThatHoldABaseTogether) {
  DemoTables tables;
  gatherHalves(tables, QLORA_GROUP_FSDP);
  const auto load = [&](uint32_t shards, int ranks) {
    tables.header.mesh.fsdp = shards;
    return loadOn(ranks, tables);
  };
  for (int ranks : {2, 4, 6}) {
    const Status status = load(2, ranks);
    EXPECT_TRUE(status.isOk()) << status.message();
  }
  EXPECT_HAS(load(4, 4).message(),
             "all_gather over fsdp has operands of 72 and 36 bytes, which do "
             "not fit 4 ranks");
  EXPECT_EQ(load(4, 6).message(),
            "'demo' shards its base over 4 ranks, but 6 were started; start a "
            "multiple of 4, or compile with another --parallel fsdp=N");
  EXPECT_HAS(load(2, 1).message(), "over 2 ranks, but 1 was started");
  tables.header.mesh.zero1 = 2;
  EXPECT_EQ(
      load(1, 3).message(),
      "'demo' shards its optimizer states over 2 ranks, but 3 were started; "
      "start a multiple of 2, or compile with another --parallel zero1=N");
}

TEST(Collectives, AreOfAllRanksWhereTheirNumberIsKnown) {
  DemoTables tables;
  tables.header.run_ranks = 2;
  EXPECT_TRUE(loadOn(2, tables).isOk());
  EXPECT_EQ(loadOn(4, tables).message(),
            "'demo' compresses gradients for 2 ranks, but 4 were started; "
            "start 2, or compile with --ranks 4");
  EXPECT_HAS(loadOn(1, tables).message(), "but 1 was started");
}

TEST(Collectives, AreOfTheRanksThatShareProducts) {
  DemoTables tables;
  gatherHalves(tables, QLORA_GROUP_TP);
  const auto load = [&](uint32_t tensorRanks, int ranks) {
    tables.header.mesh.tp = tensorRanks;
    return loadOn(ranks, tables);
  };
  for (int ranks : {2, 4, 6}) {
    const Status status = load(2, ranks);
    EXPECT_TRUE(status.isOk()) << status.message();
  }
  EXPECT_HAS(load(4, 4).message(),
             "all_gather over tp has operands of 72 and 36 bytes, which do not "
             "fit 4 ranks");
  EXPECT_EQ(load(2, 5).message(),
            "'demo' shards its matmuls over 2 ranks, but 5 were started; start "
            "a multiple of 2, or compile with another --parallel tp=N");
}

TEST(Collectives, AreOfTheRanksThatShareLines) {
  DemoTables tables;
  gatherHalves(tables, QLORA_GROUP_CP);
  shareLines(tables);
  for (int ranks : {2, 4, 6}) {
    const Status status = loadOn(ranks, tables);
    EXPECT_TRUE(status.isOk()) << status.message();
  }
  EXPECT_EQ(loadOn(5, tables).message(),
            "'demo' shards each sequence over 2 ranks, but 5 were started; "
            "start a multiple of 2, or compile with another --parallel cp=N");
  // fsdp shards over two context-parallel groups.
  tables.header.mesh.fsdp = 4;
  EXPECT_TRUE(loadOn(4, tables).isOk());
  EXPECT_HAS(loadOn(6, tables).message(), "shards its base over 4 ranks");
}

TEST(Collectives, AreOfTheStagesOfAPipeline) {
  DemoTables first, second;
  followEachOther(first, second);
  for (int ranks : {2, 4, 6}) {
    const Status status = loadOn(ranks, first);
    EXPECT_TRUE(status.isOk()) << status.message();
  }
  EXPECT_EQ(loadOn(3, first).message(),
            "'demo' distributes its layers over 2 ranks, but 3 were started; "
            "start a multiple of 2, or compile with another --parallel pp=N");
}

TEST(Collectives, ADeviceHasTheGroupsOfItsProgram) {
  DemoTables tables;
  tables.header.mesh.tp = 2;
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  fake::TwoRanks all;
  DeviceOptions options;
  options.collectives[QLORA_GROUP_DP] = &all;
  auto device = std::move(createDevice("cpu", options)).value();
  EXPECT_EQ(device->load(*module, nullptr).message(),
            "a group tp of 1 ranks for a program of 2");
  options.collectives[QLORA_GROUP_TP] = &all;
  device = std::move(createDevice("cpu", options)).value();
  const Status status = device->load(*module, nullptr);
  EXPECT_TRUE(status.isOk()) << status.message();
}

/// The shard index is the rank's index in the group that shards embedding
/// tables. The program's only kernel stores it.
TEST(Collectives, AShardIsTheNumberAmongThoseThatShareTables) {
  for (const auto &[tensorRanks, pieces] : {std::pair(2, 1), {1, 2}, {1, 1}}) {
    DemoTables tables;
    tables.header.mesh.tp = uint32_t(tensorRanks);
    tables.header.mesh.zero1 = uint32_t(pieces);
    tables.kernels[0].function = [](const qlora_kernel_args *args,
                                    int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        static_cast<float *>(args->buffers[2])[i] = float(args->step->shard);
    };
    auto module = tables.load();
    ASSERT_TRUE(module.isOk()) << module.status().message();
    fake::TwoRanks all, part;
    SingleRank single;
    all.count = 4;
    part.own = 1;
    DeviceOptions options;
    options.collectives = {&all, &single, &single};
    if (tensorRanks > 1)
      options.collectives[QLORA_GROUP_TP] = &part;
    if (pieces > 1)
      options.collectives[QLORA_GROUP_FSDP] =
          options.collectives[QLORA_GROUP_REPLICAS] = &part;
    auto device = std::move(createDevice("cpu", options)).value();
    Status status = device->load(*module, nullptr);
    ASSERT_TRUE(status.isOk()) << status.message();
    status = runEntry(*device, *module, module->entries()[kDemoEvaluate], {});
    ASSERT_TRUE(status.isOk()) << status.message();
    std::vector<float> result(16);
    ASSERT_TRUE(device
                    ->read(kDemoResult, 0,
                           {reinterpret_cast<uint8_t *>(result.data()), 64})
                    .isOk());
    EXPECT_EQ(result, std::vector<float>(16, tensorRanks * pieces - 1));
  }
}

} // namespace
} // namespace qlora
