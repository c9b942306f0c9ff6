// SPDX-License-Identifier: MIT

// The data of report.html, also for invalid logs. tests/e2e/report.py looks at
// the page in a browser.

#include "runtime/Watch/PageData.h"
#include "runtime/Watch/ReportPage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "runtime/Base/FillPage.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"

using namespace qlora;
using testing::HasSubstr;
using testing::Not;

/// Returns the JSON in the page.
static nlohmann::json dataOf(const std::string &page) {
  constexpr std::string_view kOpen = "id=\"data\">";
  const size_t begin = page.find(kOpen) + kOpen.size();
  return nlohmann::json::parse(
      page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(FillPage, NamesCannotEndTheElementOrTakeAPlaceholder) {
  EXPECT_EQ(fillPage("<a>{{data}}</a><b>{{script}}</b>",
                     "\"</a><!--{{script}}{{data}}\"", "let c;"),
            "<a>\"\\u003c/a>\\u003c!--{{script}}{{data}}\"</a><b>let c;</b>");
}

TEST(PageData, ASpikeAmongManyPointsIsDrawn) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 200000; ++i)
    points.push_back({double(i), i == 123457 ? 99.0 : 1.0 + i % 3});
  const auto drawn = drawnPoints(points, 300);
  EXPECT_LE(drawn.size(), 600u);
  const auto xOf = [](const ChartPoint &point) { return point[0]; };
  const auto yOf = [](const ChartPoint &point) { return point[1]; };
  EXPECT_EQ(std::ranges::count(drawn, 99.0, yOf), 1);
  EXPECT_TRUE(std::ranges::is_sorted(drawn, {}, xOf));
  const Chart chart{"Loss", "step", {{"a", points}}};
  EXPECT_LT(pageHtml({"run", {}, {chart}, {}}).size(), 32000u);
}

TEST(PageData, WhatIsNotFiniteBreaksTheLine) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const auto line = dataOf(pageHtml(
      {"run",
       {},
       {{"Loss",
         "step",
         {{"a", {{1, 2}, {2, 3}, {3, none}, {4, 2}, {5, infinite}, {6, 1}}}}}},
       {}}))["charts"][0]["lines"][0]["points"];
  ASSERT_EQ(line.size(), 6u);
  for (size_t i = 0; i < line.size(); ++i)
    EXPECT_EQ(line[i][1].is_null(), i == 2 || i == 4) << i;
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
  EXPECT_EQ(dataOf(page)["charts"].size(), 5u);
  EXPECT_EQ(dataOf(page)["title"], "a & b");
  const std::string tables = dumpJson(dataOf(page)["tables"]);
  for (const char *part :
       {"25.0 %", "0:01:01", "1.0 MiB", "<script>alert(1)</script>", "2.0 MiB",
        "<activations>", "an & y"})
    EXPECT_THAT(tables, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(tables, Not(HasSubstr("nan")));
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
  for (const auto &chart : dataOf(reportPage({.name = "run"}))["charts"])
    for (const auto &line : chart["lines"])
      EXPECT_EQ(line["points"].size(), 0u);
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
  const std::string page =
      dumpJson(dataOf(readWholeFile(folder + "/report.html").value()));
  for (const char *part :
       {R"("after step 5")", R"("after step 10")", R"("1<2?")", R"("yes")",
        R"("no")", R"("yes!")", R"("1 2")", R"("3")", R"("4")", "bleu 31.5",
        "exact match 50.0 %", R"(zzz…")"})
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
  const auto data = dataOf(readWholeFile(folder + "/report.html").value());
  EXPECT_EQ(dumpJson(data["charts"][0]["lines"][0]["points"]),
            "[[1.0,2.0]]");
  std::filesystem::remove_all(folder);
}
