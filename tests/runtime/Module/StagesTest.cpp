// SPDX-License-Identifier: MIT

// Programs of pipeline stages: which stage a rank gets, and errors if stages do
// not belong together.

#include <gtest/gtest.h>

#include <functional>

#include "tests/runtime/DemoTables.h"

namespace qlora {
namespace {

/// Returns the loader's message after `change` of the second stage; empty if
/// the stages load.
std::string errorAfter(const std::function<void(DemoTables &)> &change) {
  DemoTables first, second;
  followEachOther(first, second);
  change(second);
  second.table();
  auto module = first.load();
  return module.isOk() ? "" : module.status().message();
}

#define EXPECT_REFUSED(change, message)                                        \
  EXPECT_EQ(errorAfter([](DemoTables &t) { change; }), std::string(message))

TEST(Stages, AreThoseOfTheirRanks) {
  DemoTables first, second;
  followEachOther(first, second);
  second.commands[5].collective = QLORA_COLLECTIVE_SEND;
  second.commands[5].group = QLORA_GROUP_PP;
  second.commands[5].peer = -1;
  second.operands[7].access = QLORA_READ;
  second.table();
  auto module = first.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  EXPECT_EQ(module->stages(), 2);
  EXPECT_EQ(module->meshSize(), 2);
  EXPECT_EQ(module->rowRanks(), 2);
  EXPECT_TRUE(module->meetsInEntries());
  EXPECT_TRUE(module->uses(QLORA_GROUP_PP)); // true if any stage uses the group
  EXPECT_TRUE(module->uses(QLORA_GROUP_DP));
  EXPECT_FALSE(module->uses(QLORA_GROUP_FSDP));
  EXPECT_EQ(module->stage(), 0);
  EXPECT_EQ(module->ofStage(1).stage(), 1);
  for (int rank = 0; rank < 4; ++rank) {
    module->chooseRank(rank, 4);
    EXPECT_EQ(module->stage(), rank / 2) << rank;
    EXPECT_EQ(&module->table(), rank < 2 ? &first.header : &second.header);
    EXPECT_EQ(module->groups()[QLORA_GROUP_REPLICAS], 1); // nothing is sharded
  }
}

/// A parameter of another stage is found by its name in the model.
TEST(Stages, HaveTheParametersOfOneModel) {
  DemoTables first, second;
  second.parameters[0].name = "demo.other";
  followEachOther(first, second);
  auto module = first.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  EXPECT_EQ(module->parameter("demo.other"), nullptr);
  EXPECT_EQ(module->parameterOfModel("demo.other"), &second.parameters[0]);
  EXPECT_EQ(module->parameterOfModel("demo.weight"), &first.parameters[0]);
  EXPECT_EQ(module->parameterOfModel("demo.none"), nullptr);
}

/// The loader checks a stage's fields before it compares them with stage 0.
TEST(Stages, AreReadWithinTheirTables) {
  const char *parameter =
      "'demo': stage 1: parameter 0 has no name, arena or shape";
  EXPECT_REFUSED(t.parameters[0].rank = 5, parameter);
  EXPECT_REFUSED(t.parameters[0].arena = 99, parameter);
  EXPECT_REFUSED(t.parameters[0].name = nullptr, parameter);
  EXPECT_REFUSED(t.entries[0].first_binding = 1000,
                 "'demo': stage 1: entry 0 has bindings that do not exist");
  EXPECT_REFUSED(t.entries[0].binding_count = 0xffffffffu,
                 "'demo': stage 1: entry 0 has bindings that do not exist");
  EXPECT_REFUSED(t.bindings[0].arena = 99,
                 "'demo': stage 1: binding 0 is in an arena that does not "
                 "exist");
}

TEST(Stages, FollowEachOther) {
  EXPECT_REFUSED((void)t, "");
  EXPECT_REFUSED(t.header.stage = 0,
                 "'demo': stage 1: it is numbered stage 0");
  EXPECT_REFUSED(t.header.mesh.pp = 3,
                 "'demo': stage 1: its mesh is pp=3, but pp=2 in stage 0");
  EXPECT_REFUSED(t.header.stage = 2, "'demo': stage 1: stage 2 of 2");
  EXPECT_REFUSED(t.header.mesh.pp = 0,
                 "'demo': stage 1: its mesh is not valid (--parallel: 'pp=0' "
                 "is not AXIS=RANKS, such as fsdp=4, with 1 to 65535 ranks)");
  // The next stage of this stage is the stage itself.
  EXPECT_REFUSED(t.header.next_stage = &t.header,
                 "'demo': stage 1: another stage follows it, of 2");
  DemoTables alone;
  alone.header.mesh.pp = 2;
  EXPECT_EQ(alone.load().status().message(),
            "'demo': no stage follows it, of 2");
  alone.header.mesh.pp = 1;
  alone.header.next_stage = &alone.header;
  EXPECT_EQ(alone.load().status().message(),
            "'demo': another stage follows it, of 1");
}

TEST(Stages, HaveInCommonWhatAllRanksHave) {
  EXPECT_REFUSED(
      t.header.mesh.fsdp = 2,
      "'demo': stage 1: its mesh is fsdp=2,pp=2, but pp=2 in stage 0");
  EXPECT_REFUSED(t.header.target = QLORA_TARGET_CUDA,
                 "'demo': stage 1: target is 1, but 0 in stage 0");
  EXPECT_REFUSED(t.arenas[kDemoGradient].bytes = 128,
                 "'demo': stage 1: the gradient arena has 128 bytes, but 72 in "
                 "stage 0");
  EXPECT_REFUSED(t.parameters.pop_back(),
                 "'demo': stage 1: 0 parameters outside the base, but stage 0 "
                 "has 1");
  EXPECT_REFUSED(t.parameters[1].init = QLORA_INIT_ZERO,
                 "'demo': stage 1: parameter "
                 "'base_model.model.demo.lora_A.weight' differs from "
                 "'base_model.model.demo.lora_A.weight' of stage 0");
  EXPECT_REFUSED(t.entries.pop_back(),
                 "'demo': stage 1: entries is 2, but 3 in stage 0");
  EXPECT_REFUSED(t.entries[0].batch = 4,
                 "'demo': stage 1: entry 0 is evaluate of 4 x 8, but in stage "
                 "0 evaluate of 2 x 8");
  EXPECT_REFUSED(
      std::swap(t.bindings[3].offset, t.bindings[4].offset),
      "'demo': stage 1: entry 1 (accumulate_last): its results in the "
      "gradient arena differ from those in stage 0");
  // The frozen weights may differ between stages.
  EXPECT_REFUSED(t.arenas[kDemoFrozen].bytes = 128, "");
  EXPECT_REFUSED(t.parameters.erase(t.parameters.begin()), "");
}

} // namespace
} // namespace qlora
