// SPDX-License-Identifier: MIT

// The suggested interval between checkpoints loses the least time. Also tests
// the message with the suggestion.

#include "runtime/Predict/CheckpointInterval.h"
#include "runtime/Predict/NullRun.h"
#include "tests/runtime/DemoTables.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace qlora {
namespace {

/// Steps of half a second, eight machines of eight GPUs, and 10 GB per
/// checkpoint.
class CheckpointIntervals : public testing::Test {
protected:
  CheckpointIntervals() {
    tables.parameters[1].shape[0] = tables.parameters[1].shape[1] = 50'000;
    tables.parameters[1].bytes = 10'000'000'000;
    tables.arenas[kDemoTrainable].bytes = 10'000'000'000;
    tables.arenas[kDemoGradient].bytes = 10'000'000'008;
    step.ranks = 64;
    step.seconds = 0.5;
  }
  CheckpointInterval of(double machineHours) {
    auto module = tables.load();
    EXPECT_TRUE(module.isOk()) << module.status().message();
    return checkpointInterval(*module, step, 8, machineHours);
  }
  DemoTables tables;
  StepPrediction step;
};

TEST_F(CheckpointIntervals, LoseTheLeast) {
  const CheckpointInterval found = of(1000);
  EXPECT_EQ(found.machines, 8);
  EXPECT_EQ(found.failureSeconds, 1000 * 3600 / 8.0);
  EXPECT_NEAR(found.copySeconds, 1, 0.01);
  const auto lost = [&](double steps) {
    return found.copySeconds / (steps * 0.5) +
           (steps * 0.5 / 2 + found.writeSeconds) / found.failureSeconds;
  };
  const auto steps = double(found.steps);
  EXPECT_DOUBLE_EQ(found.lostShare, lost(steps));
  EXPECT_LE(lost(steps), lost(steps + 2));
  EXPECT_LE(lost(steps), lost(steps - 2));
}

/// The interval is at least the time to write a checkpoint.
TEST_F(CheckpointIntervals, AreNotShorterThanAWrite) {
  const CheckpointInterval found = of(0.01);
  EXPECT_NEAR(found.writeSeconds, 10, 0.1);
  EXPECT_NEAR(found.seconds, found.writeSeconds, 0.5);
  EXPECT_EQ(found.lostShare, 1);
}

TEST_F(CheckpointIntervals, SayWhatToGive) {
  const CheckpointInterval found = of(1000);
  EXPECT_NE(found.text().find("a failure every 125.0 hours on 8 machines"),
            std::string::npos)
      << found.text();
  EXPECT_NE(found.text().find(fmt::format("--save-steps {}", found.steps)),
            std::string::npos);
  EXPECT_EQ(found.toJson()["save_steps"], found.steps);
}

TEST(DeviceChoice, HasNoFailuresWithoutAGpu) {
  DeviceChoice choice;
  EXPECT_TRUE(choice.describeFailures(0).isOk());
  EXPECT_EQ(choice.describeFailures(10).message(),
            "--node-mtbf-hours needs a prediction for a GPU. Fix: add "
            "--simulate h100");
}

} // namespace
} // namespace qlora
