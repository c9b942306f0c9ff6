// SPDX-License-Identifier: MIT

// How many ranks a program's groups have, by what the null device says.

#include "runtime/Device/Device.h"
#include "tests/runtime/DemoTables.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

TEST(Collectives, AreOfTheRanksThatHoldABaseTogether) {
  DemoTables tables;
  // Two halves of the gradients and the count of labels, whatever the ranks.
  qlora_command &gather = tables.commands[5];
  gather.collective = QLORA_COLLECTIVE_ALL_GATHER;
  gather.group = QLORA_GROUP_FSDP;
  gather.operand_count = 2;
  gather.first_operand = uint32_t(tables.operands.size());
  tables.operands.push_back(
      {kDemoGradient, QLORA_DTYPE_F32, QLORA_WRITE, 0, 0, 72, 0});
  tables.operands.push_back(
      {kDemoTrainable, QLORA_DTYPE_F32, QLORA_READ, 0, 0, 36, 0});
  const auto load = [&](uint32_t shards, int ranks) -> Status {
    tables.header.shards = shards;
    QLORA_ASSIGN_OR_RETURN(LoadedModule module, tables.load());
    DeviceOptions options;
    options.ranks = ranks;
    QLORA_ASSIGN_OR_RETURN(auto device, createDevice("null", options));
    return device->load(module, nullptr);
  };
  for (int ranks : {2, 4, 6}) {
    const Status status = load(2, ranks);
    EXPECT_TRUE(status.isOk()) << status.message();
  }
  EXPECT_HAS(load(4, 4).message(), "all_gather over fsdp has 72 and 36 bytes, "
                                   "which are not the pieces of 4 ranks");
  EXPECT_EQ(
      load(4, 6).message(),
      "'demo' divides its base among 4 ranks, but 6 were started; start a "
      "multiple of 4, or compile with another --parallel fsdp=N");
  EXPECT_HAS(load(2, 1).message(), "among 2 ranks, but 1 was started");
  tables.header.update_pieces = 2;
  EXPECT_EQ(load(1, 3).message(),
            "'demo' divides its updates among 2 ranks, but 3 were started; "
            "start a multiple of 2, or compile with another --parallel zero1=N");
}

} // namespace
} // namespace qlora
