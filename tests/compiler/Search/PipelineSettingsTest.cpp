// SPDX-License-Identifier: MIT

// How many chunks a micro-batch of --parallel pp has.

#include "compiler/Search/PlanSettings.h"

#include <gmock/gmock.h>

using namespace qlora;
using testing::HasSubstr;

namespace {

struct Chunks : testing::Test {
  Options options;
  CompileOptions compile;

  Status fill(int64_t stages, int64_t batch) {
    compile.mesh.pp = stages;
    compile.batch = batch;
    return fillChunks(options, compile);
  }
  void give(const char *option, const std::string &value) {
    ASSERT_TRUE(options.applySetting(option, value, option).isOk());
  }
};

TEST_F(Chunks, AreAtMostFourPerStageAndDivideTheRows) {
  ASSERT_TRUE(fill(1, 64).isOk());
  EXPECT_EQ(compile.unroll.chunks, 1);
  ASSERT_TRUE(fill(2, 64).isOk());
  EXPECT_EQ(compile.unroll.chunks, 8);
  ASSERT_TRUE(fill(2, 9).isOk());
  EXPECT_EQ(compile.unroll.chunks, 3);
}

TEST_F(Chunks, AreAMultipleOfTheStagesIfStagesAreVirtual) {
  give("num_virtual_stages_per_pipeline_rank", "2");
  ASSERT_TRUE(fill(2, 10).isOk());
  EXPECT_EQ(compile.unroll.chunks, 2);
  EXPECT_THAT(fill(2, 9).message(), HasSubstr("a micro-batch has 9 rows"));
}

TEST_F(Chunks, AreRefusedWithoutAPipelineOrIfTheyDoNotDivideTheRows) {
  give("num_micro_batches", "4");
  EXPECT_THAT(fill(1, 8).message(), HasSubstr("needs a pipeline"));
  EXPECT_THAT(fill(2, 6).message(), HasSubstr("does not divide the 6 rows"));
}

} // namespace
