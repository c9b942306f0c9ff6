// SPDX-License-Identifier: MIT

// Which layouts --parallel auto plans, and which one it chooses.

#include "compiler/Search/LayoutSearch.h"

#include <gmock/gmock.h>

using namespace mlir;
using namespace qlora;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

constexpr int64_t kMiB = 1 << 20;

/// A search over the layouts of two ranks. A plan has 6 MiB, less one for each
/// axis of two ranks, and takes a second for each row.
struct LayoutSearch : testing::Test {
  MLIRContext context;
  OwningOpRef<ModuleOp> model = ModuleOp::create(UnknownLoc::get(&context));
  PlanSettings settings;
  std::map<std::string, double> rowSeconds; ///< other layouts: one second
  std::string refused;                      ///< layout whose plan is an error
  std::vector<std::string> tried;
  std::string notes;

  LayoutSearch() {
    settings.ranks = 2;
    settings.compile.batch = 4;
  }

  FailureOr<StepPlan> plan(const PlanSettings &current) {
    const std::string layout = current.options.text("parallel");
    tried.push_back(layout);
    if (layout == refused)
      return emitError(model->getLoc(), "cannot shard");
    const CompileOptions &options = current.compile;
    auto known = rowSeconds.find(layout);
    StepPlan result;
    result.bytes = (8 - options.mesh.fsdp - options.mesh.zero1) * kMiB;
    result.fits =
        options.memoryLimit == 0 || result.bytes <= options.memoryLimit;
    result.stepRows = double(options.batch);
    result.rowSeconds = known == rowSeconds.end() ? 1 : known->second;
    result.step.all = result.rowSeconds * result.stepRows;
    return result;
  }

  LogicalResult find() {
    return findLayout(
        *model, settings, DeviceProfile(),
        [this](const PlanSettings &current) { return plan(current); },
        [this](const std::string &note) { notes += note; });
  }
  std::string chosen() const { return settings.options.text("parallel"); }
};

TEST_F(LayoutSearch, TriesSimpleLayoutsFirst) {
  settings.ranks = 4;
  ASSERT_TRUE(succeeded(find()));
  EXPECT_THAT(tried,
              ElementsAre("none", "fsdp=2", "fsdp=4", "zero1=2", "zero1=4",
                          "fsdp=2,zero1=2", "fsdp=4,zero1=4"));
  EXPECT_EQ(chosen(), "none");
  EXPECT_THAT(notes, HasSubstr("4 ranks, without a memory limit"));
  EXPECT_THAT(notes, HasSubstr("fsdp=2 x 2"));
}

TEST_F(LayoutSearch, TakesTheFastest) {
  rowSeconds = {{"fsdp=2", 0.9}, {"zero1=2", 0.8}};
  ASSERT_TRUE(succeeded(find()));
  EXPECT_EQ(chosen(), "zero1=2");
  EXPECT_EQ(settings.compile.mesh.zero1, 2);
  EXPECT_EQ(settings.compile.mesh.fsdp, 1);
  EXPECT_THAT(notes, HasSubstr("chosen: the fastest that fits"));
  EXPECT_THAT(notes, HasSubstr("12.5 % slower"));
}

TEST_F(LayoutSearch, TakesTheSimplestWithinHalfAPercent) {
  rowSeconds = {{"fsdp=2", 0.98}, {"zero1=2", 0.976}};
  ASSERT_TRUE(succeeded(find()));
  EXPECT_EQ(chosen(), "fsdp=2");
  EXPECT_THAT(notes, HasSubstr("chosen: the simplest of equally fast layouts"));
  EXPECT_THAT(notes, HasSubstr("as fast, within 0.5 %"));
}

TEST_F(LayoutSearch, TakesTheSmallestIfNothingFits) {
  settings.compile.memoryLimit = 3 * kMiB;
  ASSERT_TRUE(succeeded(find()));
  EXPECT_EQ(chosen(), "fsdp=2,zero1=2");
  EXPECT_THAT(notes, HasSubstr("exceeds the limit by 3.0 MiB\n"));
  EXPECT_THAT(notes,
              HasSubstr("exceeds the limit by 1.0 MiB; the smallest layout"));
}

TEST_F(LayoutSearch, ShowsTheErrorOfALayoutInTheTable) {
  refused = "fsdp=2";
  rowSeconds = {{"fsdp=2", 0.5}};
  ASSERT_TRUE(succeeded(find()));
  EXPECT_EQ(chosen(), "none");
  EXPECT_THAT(notes, HasSubstr("cannot shard\n"));
}

TEST_F(LayoutSearch, FailsWithTheErrorOfDataParallelism) {
  refused = "none";
  std::string error;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    error = diagnostic.str();
    return success();
  });
  EXPECT_TRUE(failed(find()));
  EXPECT_EQ(error, "cannot shard");
  EXPECT_EQ(notes, "");
}

TEST_F(LayoutSearch, FindsABatchForEachLayout) {
  settings.batches = {2, 4};
  settings.compile.memoryLimit = 5 * kMiB;
  ASSERT_TRUE(succeeded(find()));
  EXPECT_THAT(tried,
              ElementsAre("none", "fsdp=2", "fsdp=2", "zero1=2", "zero1=2",
                          "fsdp=2,zero1=2", "fsdp=2,zero1=2"));
  EXPECT_EQ(chosen(), "fsdp=2");
  EXPECT_EQ(settings.compile.batch, 4);
  EXPECT_THAT(notes, HasSubstr("\nbatch 4; plan 5.0 of 5.0 MiB"));
}

TEST_F(LayoutSearch, HasNoChoiceOnOneRank) {
  settings.ranks = 1;
  settings.findsLayout = true;
  ASSERT_TRUE(succeeded(findLayoutAndBatch(
      *model, settings, [this](const std::string &note) { notes += note; })));
  EXPECT_EQ(chosen(), "none");
  EXPECT_THAT(notes, HasSubstr("one rank, no layout"));
}

} // namespace
