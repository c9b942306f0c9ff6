// SPDX-License-Identifier: MIT

// Which batches --auto-find-batch-size plans, and which one it chooses.

#include "compiler/Search/BatchSearch.h"

#include "mlir/IR/Location.h"
#include "mlir/IR/MLIRContext.h"
#include "runtime/Options/StepRows.h"

#include <gmock/gmock.h>

using namespace mlir;
using namespace qlora;
using testing::ElementsAre;

namespace {

constexpr int64_t kMiB = 1 << 20;

/// A search over plans of one MiB per row.
struct BatchSearch : testing::Test {
  MLIRContext context;
  PlanSettings settings;
  int64_t largest = 1024;               ///< batch that fits
  std::map<int64_t, double> rowSeconds; ///< other batches: one second
  std::vector<int64_t> tried;

  void give(const char *option, const std::string &value) {
    ASSERT_TRUE(settings.options.applySetting(option, value, option).isOk());
  }

  FoundBatch find() {
    settings.batches =
        batchCandidates(settings.options, settings.rowRanks()).value();
    const auto plan = [&](const PlanSettings &current) -> FailureOr<StepPlan> {
      const int64_t batch = current.compile.batch;
      tried.push_back(batch);
      StepPlan result;
      result.fits = batch <= largest;
      result.bytes = batch * kMiB;
      auto known = rowSeconds.find(batch);
      result.rowSeconds = known == rowSeconds.end() ? 1 : known->second;
      return result;
    };
    return *findBatch(UnknownLoc::get(&context), settings, plan);
  }
};

TEST_F(BatchSearch, TakesTheLargestOfEquallyFastBatches) {
  const FoundBatch found = find();
  EXPECT_THAT(tried, ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_EQ(found.batch, 64);
  EXPECT_EQ(found.reason, "batch 64; plan 64.0 MiB; a larger "
                          "--per-device-train-batch-size tries more");
}

TEST_F(BatchSearch, HalvesTheGivenBatchAndEndsAtTheFirstThatDoesNotFit) {
  give("per_device_train_batch_size", "26");
  settings.compile.memoryLimit = 8 * kMiB;
  largest = 8;
  const FoundBatch found = find();
  EXPECT_THAT(tried, ElementsAre(1, 3, 6, 13));
  EXPECT_EQ(found.reason,
            "batch 6; plan 6.0 of 8.0 MiB; batch 13 does not fit");
  EXPECT_EQ(settings.compile.batch, 6);
  EXPECT_EQ(settings.options.integer("per_device_train_batch_size"), 6);
}

TEST_F(BatchSearch, TakesTheLargestWithinOnePercentAndEndsAboveFive) {
  rowSeconds = {{2, 0.9}, {4, 0.908}, {8, 0.93}, {16, 0.96}};
  const FoundBatch found = find();
  EXPECT_THAT(tried, ElementsAre(1, 2, 4, 8, 16));
  EXPECT_EQ(found.reason,
            "batch 4; plan 4.0 MiB; with batch 16 a row would take 6 % longer");
}

TEST_F(BatchSearch, TakesTheSmallestWithoutAReasonIfNothingFits) {
  largest = 0;
  const FoundBatch found = find();
  EXPECT_THAT(tried, ElementsAre(1));
  EXPECT_EQ(found.batch, 1);
  EXPECT_FALSE(found.plan.fits);
  EXPECT_EQ(found.reason, "");
}

TEST_F(BatchSearch, TriesTheDivisorsOfTheRowsOfARank) {
  give("global_batch_size", "48");
  give("per_device_train_batch_size", "10");
  settings.ranks = 2;
  EXPECT_EQ(find().reason, "batch 8 x 3 accumulation steps x 2 ranks = 48 "
                           "rows a step; plan 8.0 MiB");
  EXPECT_THAT(tried, ElementsAre(1, 2, 3, 4, 6, 8));
}

} // namespace
