// SPDX-License-Identifier: MIT

// report.html and its charts, also for invalid logs.

#include "runtime/Watch/Chart.h"
#include "runtime/Watch/ReportPage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "runtime/Base/UserFiles.h"

using namespace qlora;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

static size_t countOf(const std::string &text, const std::string &part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST(Chart, TicksAreRoundAndCoverBothEnds) {
  EXPECT_THAT(roundTicks(0, 100), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(roundTicks(1.2, 3.1), ElementsAre(1, 1.5, 2, 2.5, 3, 3.5));
  const double greatest = 1e300, least = 1e-300;
  for (auto [low, high] : {std::pair(7.0, 7.0), {0.0, 0.0}, {least, least},
                           {-greatest, greatest}, {greatest, greatest},
                           {1.0, 1.0 + 1e-15}, {0.0, 2e-4}}) {
    const auto ticks = roundTicks(low, high);
    EXPECT_GE(ticks.size(), 3u) << low;
    EXPECT_LE(ticks.size(), 9u) << low;
    EXPECT_LE(ticks.front(), low);
    EXPECT_GE(ticks.back(), high);
    EXPECT_LT(ticks.front(), ticks.back());
  }
}

TEST(Chart, ASpikeAmongManyPointsIsDrawn) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 200000; ++i)
    points.push_back({double(i), i == 123457 ? 99.0 : 1.0 + i % 3});
  const auto drawn = drawnPoints(points, 300);
  EXPECT_LE(drawn.size(), 600u);
  EXPECT_EQ(std::ranges::count(drawn, 99.0, &ChartPoint::y), 1);
  EXPECT_TRUE(std::ranges::is_sorted(drawn, {}, &ChartPoint::x));
  EXPECT_LT(chartSvg({"Loss", "step", {{"a", points}}}).size(), 20000u);
}

TEST(Chart, WhatIsNotFiniteBreaksTheLine) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const std::string svg = chartSvg(
      {"Loss",
       "step",
       {{"a", {{1, 2}, {2, 3}, {3, none}, {4, 2}, {5, infinite}, {6, 1}}}}});
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  const size_t line = svg.find("class=\"line s0\" d=\"") + 19;
  const std::string path = svg.substr(line, svg.find('"', line) - line);
  EXPECT_EQ(countOf(path, "M"), 3u) << path;
  EXPECT_EQ(countOf(path, "L"), 1u) << path;
}

TEST(Chart, LabelsAreShort) {
  const auto labels = [](double high) {
    return chartSvg({"Loss", "step", {{"a", {{0, 0}, {1, high}}}}});
  };
  EXPECT_THAT(labels(2e-4), HasSubstr(">1.5e-4<"));
  EXPECT_THAT(labels(1e-4), HasSubstr(">2e-5<"));
  EXPECT_THAT(labels(200000), HasSubstr(">150k<"));
  EXPECT_THAT(labels(-1e300), HasSubstr(">-1e300<"));
  EXPECT_THAT(labels(1), HasSubstr(">0.2<"));
}

TEST(Chart, LinesEndWhereTheXAxisDoes) {
  const std::string svg =
      chartSvg({"Loss", "step", {{"a", {{10, 2}, {120, 3}}}}});
  EXPECT_THAT(svg, HasSubstr(">100<"));
  EXPECT_THAT(svg, Not(HasSubstr(">150<")));
  EXPECT_THAT(svg, HasSubstr("cx=\"52.0\""));
  EXPECT_THAT(svg, HasSubstr("cx=\"340.0\""));
}

TEST(Chart, NoiseOfAnAmountIsSmallFromZeroOn) {
  Chart memory{"Memory", "step", {{"a", {{1, 60.508}, {2, 60.516}}}}};
  EXPECT_THAT(chartSvg(memory), HasSubstr(">60.51<"));
  memory.startsAtZero = true;
  EXPECT_THAT(chartSvg(memory), HasSubstr(">80<"));
  EXPECT_THAT(chartSvg(memory), Not(HasSubstr(">60.51<")));
}

TEST(Chart, OnePointIsAMarkAndNoneAreSaid) {
  EXPECT_EQ(countOf(chartSvg({"Loss", "step", {{"a", {{5, 2}}}}}), "<circle"),
            1u);
  EXPECT_THAT(chartSvg({"Loss", "step", {{"a", {}}}}),
              HasSubstr("Nothing was logged."));
}

TEST(Chart, SeveralRunsHaveALegendOfTheirNames) {
  const std::string svg = chartSvg(
      {"Loss", "tokens", {{"<b>", {{1, 2}}}, {"second", {{1, 3}}}}});
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;"));
  EXPECT_THAT(svg, HasSubstr("second</span>"));
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
}

TEST(ReportPage, HasChartsTablesAndWhatDiffersFromTheDefaults) {
  Options settings;
  ASSERT_TRUE(settings
                  .applySettings(std::vector<OptionSetting>{
                      {findOption(optionTable(), "model_name_or_path"),
                       "<script>alert(1)</script>", "x"}})
                  .isOk());
  RunFolder run{.name = "a & b", .logged = LoggedLines(
      "{\"step\":0,\"eval_loss\":8.5,\"eval_token_accuracy\":0.25}\n"
      "{\"step\":10,\"loss\":2.5,\"grad_norm\":1e300,\"learning_rate\":1e-4}\n"
      "{\"step\":20,\"loss\":null,\"grad_norm\":1.0}\n"
      "{\"step\":20,\"train_runtime\":61,\"peak_memory_bytes\":1048576}\n")};
  run.settings = settings;
  run.plan = {{"arenas", {{"<activations>", 2097152u}}}};
  run.environment = {{"hardware", "an & y"}, {"ranks", 2}};
  const std::string page = reportPage(run);
  EXPECT_EQ(countOf(page, "<figure>"), 5u);
  for (const char *part :
       {"<title>a &amp; b</title>", "25.0 %", "0:01:01", "1.0 MiB",
        "&lt;script&gt;alert(1)&lt;/script&gt;", "2.0 MiB",
        "&lt;activations&gt;", "an &amp; y"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("cannot be read")));
}

TEST(ReportPage, IsMadeOfWhatCanBeRead) {
  const std::string page = reportPage(
      {.name = "run", .logged = LoggedLines("{\"step\":1,\"loss\":2}\n[]\n"
                                            "{\"step\":\"x\"}\n"
                                            "{\"step\":2,\"lo")});
  EXPECT_THAT(page, HasSubstr("cannot be read: 3."));
  EXPECT_THAT(page, HasSubstr("config.resolved.yaml cannot be read"));
  EXPECT_THAT(page, HasSubstr("the run is not finished"));
  EXPECT_THAT(reportPage({.name = "run"}), HasSubstr("Nothing was logged."));
}

/// The first answers of the last two evaluations are a table, as text or as
/// token ids.
TEST(ReportPage, ShowsTheFirstAnswers) {
  const std::string folder = testing::TempDir() + "answersRun";
  std::filesystem::create_directories(folder + "/predictions");
  std::ofstream metrics(folder + "/metrics.jsonl");
  for (int step : {0, 5, 10, 10})
    metrics << "{\"step\":" << step
            << ",\"eval_loss\":2,\"eval_exact_match\":0.5,\"eval_bleu\":31.5,"
               "\"eval_generation_runtime\":1}\n";
  metrics.close();
  std::ofstream(answersFile(folder, 0)) << "{\"prompt\":\"not shown\"}\n";
  std::ofstream(answersFile(folder, 5))
      << "{\"prompt\":\"1<2?\",\"prediction\":\"no\",\"reference\":\"yes\"}\n"
      << "[]\n";
  std::ofstream(answersFile(folder, 10))
      << "{\"prompt\":\"1<2?\",\"prediction\":\"yes!\",\"reference\":\"yes\"}"
      << "\n{\"prompt_ids\":[1,2],\"output_ids\":[3,\"x\"],"
      << "\"reference_ids\":[4]}\n{\"prompt\":\"" << std::string(9000, 'z')
      << "\"}\n{\"prom";
  ASSERT_TRUE(writeReport(folder).isOk());
  const std::string page = readWholeFile(folder + "/report.html").value();
  for (const char *part : {"after step 5<", "after step 10<", ">1&lt;2?<",
                           ">yes<", ">no<", ">yes!<", ">1 2<", ">3<", ">4<",
                           "bleu 31.5", "exact match 50.0 %", "zzz…<"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("not shown")));
  EXPECT_THAT(page, Not(HasSubstr(std::string(5000, 'z'))));
  std::filesystem::remove_all(folder);
}

TEST(ReportPage, AFolderWithoutARunHasNone) {
  const std::string folder = testing::TempDir() + "noRun";
  std::filesystem::create_directories(folder);
  EXPECT_THAT(writeReport(folder).message(), HasSubstr("no run in"));
  std::ofstream(folder + "/metrics.jsonl") << "{\"step\":1,\"loss\":2}\n";
  ASSERT_TRUE(writeReport(folder).isOk());
  EXPECT_THAT(readWholeFile(folder + "/report.html").value(),
              HasSubstr("<svg"));
  std::filesystem::remove_all(folder);
}
