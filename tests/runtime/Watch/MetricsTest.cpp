// SPDX-License-Identifier: MIT

// Progress texts for people, and metrics.jsonl.

#include "runtime/Watch/StepLog.h"
#include "runtime/Watch/Metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/Base/HostMemory.h"

using namespace qlora;

TEST(ProgressLine, StepLinesStandUnderTheirHeading) {
  StepReport report{120,   1000,  1.44,  1.2345, 0.87,
                    1.9e-4, 0.812, 40300, 730};
  EXPECT_EQ(stepHeading(1000),
            "     step   epoch     loss grad norm       lr ms/step   tok/s "
            "time left");
  EXPECT_EQ(stepLine(report),
            " 120/1000    1.44   1.2345      0.87   1.9e-4     812   40.3k "
            "  0:12:10");
  report.rewards = RewardReport{0.75, 1.2345};
  EXPECT_EQ(stepHeading(1000, true),
            "     step   epoch     loss  acc  margin grad norm       lr "
            "ms/step time left");
  EXPECT_EQ(stepLine(report),
            " 120/1000    1.44   1.2345 0.75   1.234      0.87   1.9e-4 "
            "    812   0:12:10");
  report.rewards->accuracy = std::nan("");
  EXPECT_NE(stepLine(report).find("  1.2345    -   1.234"), std::string::npos);
  report.totalSteps = 999999;
  report.step = 999998;
  report.epoch = 9999.99;
  report.loss = 123.4567;
  report.gradNorm = -1.2e-5;
  report.stepSeconds = 100;
  report.etaSeconds = 99 * 3600;
  EXPECT_LE(stepLine(report).size(), 80u);
  EXPECT_EQ(stepLine(report).size(), stepHeading(999999, true).size());
  report.rewards.reset();
  EXPECT_LE(stepLine(report).size(), 80u);
  EXPECT_EQ(stepLine(report).size(), stepHeading(999999).size());
}

TEST(ProgressLine, BarFillsItsWidth) {
  for (uint64_t done : {0u, 45u, 100u}) {
    std::string bar =
        progressBar({"training", done, 100, 9, false, "steps"}, 60);
    EXPECT_EQ(bar.size(), 60u) << bar;
    EXPECT_NE(bar.find(fmt::format("] {} %", done)), std::string::npos) << bar;
  }
  EXPECT_EQ(progressBar({"tokenising train.jsonl", 4000, 100000, 2, false,
                         "rows"},
                        79),
            "tokenising train.jsonl [>                      ] 4 %, 2000 "
            "rows/s, 0:00:48 left");
  EXPECT_LE(progressBar({std::string(90, 'x'), 1, 2, 1, false, "rows"}, 79)
                .size(),
            79u);
}

TEST(ProgressLine, ALineOfProgressKnowsBytes) {
  EXPECT_EQ(progressLine({"loading", 1u << 30, 3u << 30, 2, true, "bytes"}),
            "loading: 1.0 GiB of 3.0 GiB, 512 MiB/s, 0:00:04 left");
  EXPECT_EQ(progressLine({"tokenising", 1500, 0, 1, false, "rows"}),
            "tokenising: 1,500 rows, 1500 rows/s");
}

TEST(Divergence, IsALossThatCameBackToGuessing) {
  Divergence divergence(1000, 0.1); // ln 1000 = 6.91
  StepReport report;
  report.gradNorm = 1;
  // Neither high losses at the start nor a single high loss is divergence.
  for (double loss : {6.9, 6.8, 6.7, 3.5, 6.8, 6.0, 6.8}) {
    report.loss = loss;
    EXPECT_EQ(divergence.check(report), "") << loss;
  }
  EXPECT_NE(divergence.check(report).find("training has diverged"),
            std::string::npos);
  EXPECT_EQ(divergence.check(report), "") << "it is said once";
}

TEST(Divergence, IsAGradientOfNothing) {
  Divergence divergence(1000, 0.1);
  StepReport report;
  report.loss = 1;
  EXPECT_NE(divergence.check(report).find("is 0: training no longer learns"),
            std::string::npos);
  EXPECT_EQ(divergence.check(report), "") << "it is said once";
}

TEST(Metrics, LinesAreJsonWithAllDigits) {
  std::string folder = testing::TempDir() + "metrics";
  std::filesystem::create_directories(folder);
  FILE *out = std::tmpfile();
  {
    Metrics metrics(false, out, out);
    ASSERT_TRUE(metrics.open(folder, Metrics::Start::kNew).isOk());
    double loss = 0.1 + 0.2;
    EXPECT_TRUE(metrics.log({{"step", 1}, {"loss", loss}}, "one").isOk());
    metrics.showBar({"training", 1, 2, 1, false, "steps"}); // no terminal
    metrics.progress("loading", "bytes")(1, 2); // too short to show
    EXPECT_TRUE(metrics.log({{"step", 2}}, "two").isOk());
  }
  std::ostringstream text;
  text << std::ifstream(folder + "/metrics.jsonl").rdbuf();
  EXPECT_EQ(text.str(),
            "{\"step\":1,\"loss\":0.30000000000000004}\n{\"step\":2}\n");
  std::rewind(out);
  char shown[64] = {};
  EXPECT_EQ(std::fread(shown, 1, 63, out), 8u);
  EXPECT_STREQ(shown, "one\ntwo\n");
  std::fclose(out);
}

TEST(Metrics, AMissingFolderIsAnError) {
  EXPECT_FALSE(Metrics(false, stdout, stderr)
                   .open("/nonexistent", Metrics::Start::kNew)
                   .isOk());
}

TEST(ProcessMemory, PeakIsAtLeastResident) {
  ProcessMemory memory = readProcessMemory();
  EXPECT_GT(memory.residentBytes, 0u);
  EXPECT_GE(memory.peakBytes, memory.residentBytes);
}
