// SPDX-License-Identifier: MIT

// Texts for people, and metrics.jsonl.

#include "runtime/Session/Metrics.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/Session/ProcessMemory.h"

using namespace qlora;

TEST(ReportText, Numbers) {
  EXPECT_EQ(formatBytes(512), "512 B");
  EXPECT_EQ(formatBytes(1536), "1.5 KiB");
  EXPECT_EQ(formatBytes(19541919334), "18.2 GiB");
  EXPECT_EQ(formatBytes(200ull << 20), "200 MiB");
  EXPECT_EQ(formatDuration(730), "0:12:10");
  EXPECT_EQ(formatDuration(-1), "0:00:00");
  EXPECT_EQ(formatRate(812.4), "812");
  EXPECT_EQ(formatRate(40300), "40.3k");
  EXPECT_EQ(formatShort(1.9e-4), "1.9e-4");
  EXPECT_EQ(formatShort(0.0099999), "1e-2");
  EXPECT_EQ(formatShort(0.87), "0.87");
  EXPECT_EQ(formatShort(0), "0");
  EXPECT_EQ(formatShort(-2.5e5), "-2.5e5");
}

TEST(ReportText, ProgressLine) {
  StepReport report{120,   1000,  1.2345,      0.87,        1.9e-4,
                    0.812, 40300, 19541919334, 19434545152, 730};
  EXPECT_EQ(progressLine(report),
            "step 120/1000 12% | loss 1.2345 | gnorm 0.87 | lr 1.9e-4 | 812 "
            "ms | 40.3k tok/s | mem 18.2 GiB (plan 18.1 GiB) | eta 0:12:10");
}

TEST(ReportText, BarFillsItsWidth) {
  for (int64_t step : {0, 45, 100}) {
    std::string bar = progressBar(step, 100, 12, 60);
    EXPECT_LE(bar.size(), 60u);
    EXPECT_NE(bar.find("] " + std::to_string(step) + "/100 eta 0:00:12"),
              std::string::npos);
  }
  EXPECT_EQ(progressBar(0, 0, 0, 10), "[====] 0/0 eta 0:00:00");
}

TEST(ReportText, PlanTableAddsUp) {
  PlanRow rows[] = {{"frozen base", 1024, 1024, "shared"},
                    {"adapters", 512, 0, ""}};
  EXPECT_EQ(planTable("memory", rows, false),
            "memory                           plan\n"
            "  frozen base                 1.0 KiB  shared\n"
            "  adapters                      512 B\n"
            "  total                       1.5 KiB\n");
}

TEST(ReportText, WhatIsNotCountedComesAfterTheTotal) {
  PlanRow rows[] = {{"host (pinned)", 4096, 0, "", false},
                    {"adapters", 512, 0, ""}};
  EXPECT_EQ(planTable("memory", rows, false),
            "memory                           plan\n"
            "  adapters                      512 B\n"
            "  total                         512 B\n"
            "  host (pinned)               4.0 KiB\n");
}

TEST(Metrics, LinesAreJsonWithAllDigits) {
  std::string folder = testing::TempDir() + "metrics";
  std::filesystem::create_directories(folder);
  FILE *out = std::tmpfile();
  {
    Metrics metrics(false, out, out);
    ASSERT_TRUE(metrics.open(folder).isOk());
    double loss = 0.1 + 0.2;
    EXPECT_TRUE(metrics.log({{"step", 1}, {"loss", loss}}, "one").isOk());
    metrics.showBar(1, 2, 0); // no terminal: nothing
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
  EXPECT_FALSE(Metrics(false, stdout, stderr).open("/nonexistent").isOk());
}

TEST(ProcessMemory, PeakIsAtLeastResident) {
  ProcessMemory memory = readProcessMemory();
  EXPECT_GT(memory.residentBytes, 0u);
  EXPECT_GE(memory.peakBytes, memory.residentBytes);
}
