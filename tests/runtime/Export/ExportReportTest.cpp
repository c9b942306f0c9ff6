// SPDX-License-Identifier: MIT

// Tables and warnings of exports.

#include "runtime/Export/ExportReport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

static ExportReport reportOf(double loss) {
  ExportReport report;
  report.format = "merged";
  report.base = "org/base";
  report.adapter = "run_1";
  report.dataName = "held-out.jsonl";
  report.rows = 40;
  report.lossBefore = 3.0;
  report.lossTrained = 1.0;
  report.artefacts = {{"merged, BF16", true, loss, {}, "rounding to BF16"},
                      {"other", false, 9.0, {}, ""}};
  return report;
}

TEST(ExportReport, WarnsAboveOnePercentOfTheGain) {
  EXPECT_THAT(reportOf(1.019).warnings(), IsEmpty());
  EXPECT_THAT(reportOf(0.979).warnings(),
              ElementsAre(HasSubstr("cause: rounding to BF16")));
  ExportReport report = reportOf(1.0);
  report.artefacts[0].reader = {"reader 1", "", 1.1};
  EXPECT_THAT(report.warnings(),
              ElementsAre(HasSubstr("merged, BF16 in reader 1")));
  report.lossTrained = 3.5;
  EXPECT_THAT(report.warnings(), ElementsAre(HasSubstr("did not lower")));
  report.lossTrained = {};
  EXPECT_THAT(report.warnings(), IsEmpty());
}

TEST(ExportReport, HasOneTableInBothFiles) {
  ExportReport report = reportOf(1.25);
  report.artefacts[0].reader.notChecked = "not installed: torch";
  EXPECT_THAT(report.table(),
              HasSubstr("| merged, BF16 | 1.25000 | +0.25000 | not checked: "
                        "not installed: torch | - | - |"));
  EXPECT_THAT(report.table(), HasSubstr("| not written: other | 9.00000"));
  const std::string card = modelCard(
      report, {"model", "transformers", "Load it.", "It was added to X."});
  EXPECT_THAT(card, HasSubstr(report.table()));
  EXPECT_THAT(card, HasSubstr("base_model: \"org/base\""));
  EXPECT_THAT(card, HasSubstr("run\\_1"));
  const auto json = report.json();
  EXPECT_EQ(json["artefacts"][0]["difference"], 0.25);
  EXPECT_EQ(json["artefacts"][0]["reader_loss"], nullptr);
  EXPECT_EQ(json["data"]["rows"], 40);
  EXPECT_EQ(json["warnings"].size(), 1U);
}

} // namespace
} // namespace qlora
