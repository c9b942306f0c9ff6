// SPDX-License-Identifier: MIT

// Tests which of several plans a GPU gets, and which programs work together.

#include "runtime/Session/ProgramChoice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/Module/ProgramForm.h"
#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using testing::HasSubstr;
using ProgramChoice = SessionFixture;

TEST(LargestThatFits, IsTheOneThatGivesUpLeast) {
  const std::vector<uint64_t> planned = {20, 70, 40};
  EXPECT_EQ(largestThatFits(planned, 80), 1u);
  EXPECT_EQ(largestThatFits(planned, 70), 1u);
  EXPECT_EQ(largestThatFits(planned, 69), 2u);
  EXPECT_EQ(largestThatFits(planned, 20), 0u);
  EXPECT_EQ(largestThatFits(planned, 19), 0u); // none fits; loading will fail
}

TEST_F(ProgramChoice, CpuRanksHaveOneMemory) {
  const ProcessOutput output =
      run({QLORA_UNIGRAM_MODULE, "--train-file", at("tokens.safetensors"),
           "--output-dir", at("no"), "--max-steps", "1"});
  EXPECT_EQ(output.exitCode, 1);
  EXPECT_THAT(output.errors, HasSubstr("only programs for GPUs of different "
                                       "memory sizes can be given together"));
}

static std::string formOf(const char *path) {
  auto module = LoadedModule::open(path);
  EXPECT_TRUE(module.isOk()) << module.status().message();
  return programForm(*module);
}

TEST(ProgramForm, IsOfWhatRanksDoTogether) {
  EXPECT_EQ(formOf(QLORA_UNIGRAM_MODULE), formOf(QLORA_UNIGRAM_MODULE));
  EXPECT_NE(formOf(QLORA_UNIGRAM_MODULE), formOf(QLORA_UNIGRAM_CUDA_MODULE));
  EXPECT_NE(formOf(QLORA_UNIGRAM_MODULE), formOf(QLORA_UNIGRAM_SHARDS_MODULE));
}

TEST(ProgramForm, IsNotOfThePlan) {
  auto module = LoadedModule::open(QLORA_UNIGRAM_MODULE);
  ASSERT_TRUE(module.isOk());
  qlora_module other = module->table();
  std::vector<qlora_arena> arenas(module->arenas().begin(),
                                  module->arenas().end());
  other.arenas = arenas.data();
  const auto formWith = [&](unsigned kind) {
    std::copy(module->arenas().begin(), module->arenas().end(), arenas.begin());
    for (qlora_arena &arena : arenas)
      if (arena.kind == kind)
        arena.bytes += 256;
    return programForm(*LoadedModule::fromTable(other, "other"));
  };
  EXPECT_EQ(formWith(QLORA_ARENA_ACTIVATION), programForm(*module));
  EXPECT_NE(formWith(QLORA_ARENA_GRADIENT), programForm(*module));
}

TEST(ProgramForm, IsOfCollectivesAndParameters) {
  auto module = LoadedModule::open(QLORA_UNIGRAM_MODULE);
  ASSERT_TRUE(module.isOk());
  const std::string form = programForm(*module);
  std::vector<qlora_command> commands(module->commands().begin(),
                                      module->commands().end());
  std::vector<qlora_parameter> parameters(module->parameters().begin(),
                                          module->parameters().end());
  qlora_module other = module->table();
  other.commands = commands.data();
  other.parameters = parameters.data();
  const auto changed = [&] {
    auto loaded = LoadedModule::fromTable(other, "other");
    EXPECT_TRUE(loaded.isOk()) << loaded.status().message();
    return loaded.isOk() && programForm(*loaded) != form;
  };
  EXPECT_FALSE(changed());
  const auto collective = std::ranges::find(commands, QLORA_COMMAND_COLLECTIVE,
                                            &qlora_command::kind);
  ASSERT_NE(collective, commands.end());
  const qlora_command was = *collective;
  collective->kind = QLORA_COMMAND_RECORD;
  EXPECT_TRUE(changed());
  *collective = was;
  parameters[0].name = "another";
  EXPECT_TRUE(changed());
}
