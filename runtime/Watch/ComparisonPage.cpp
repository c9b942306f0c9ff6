// SPDX-License-Identifier: MIT

// Selects the charts and tables of a comparison.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Watch/PageData.h"
#include "runtime/Watch/RunComparison.h"

namespace qlora {

using nlohmann::json;

namespace {
enum class Over { kTokens, kSeconds };
} // namespace

/// Returns the logged `key` over tokens or over seconds of training.
static ChartLine lineOver(Over over, const RunFolder &run, const char *key) {
  std::vector<ChartPoint> points;
  double seconds = 0, tokens = 0;
  for (const json &line : run.logged.steps) {
    const double seen = numberOf(line, "num_input_tokens_seen");
    // Skip a point without a known time; later points are still drawn.
    const double taken = (seen - tokens) / numberOf(line, "tokens_per_second");
    seconds += std::isfinite(taken) ? taken : 0;
    tokens = std::isfinite(seen) ? seen : tokens;
    const double at = over == Over::kTokens  ? seen
                      : std::isfinite(taken) ? seconds
                                             : taken;
    points.push_back({at, numberOf(line, key)});
  }
  return {run.name, points};
}

/// Returns the settings that differ between the runs: rows of a name and a
/// value for each run.
static std::vector<TextRow>
differingSettings(const std::vector<RunFolder> &runs) {
  std::vector<TextRow> rows;
  for (const OptionRow &option : optionTable()) {
    if (std::string_view(option.name) == "output_dir")
      continue; // a path, not a setting
    TextRow row = {option.name};
    for (const RunFolder &run : runs)
      row.push_back(run.settings ? dumpJson(run.settings->value(option.name))
                                 : "–");
    if (std::ranges::count(row, row[1]) < std::ssize(runs))
      rows.push_back(std::move(row));
  }
  return rows;
}

/// Formats the settings that differ, such as "lora_r  16 | 64".
static std::string differencesText(const std::vector<RunFolder> &runs) {
  std::string text;
  for (const TextRow &row : differingSettings(runs))
    text += fmt::format("{:<21}  {}\n", row[0],
                        fmt::join(row.begin() + 1, row.end(), " | "));
  return text.empty() ? "no option differs\n" : text;
}

std::string comparisonPage(const std::vector<RunFolder> &runs,
                           const std::vector<ComparedRun> &compared) {
  TextRow names, notes;
  for (const RunFolder &run : runs) {
    names.push_back(run.name);
    notes.push_back(
        unreadableText("metrics.jsonl of " + run.name, run.logged.unreadable));
  }
  std::vector<Chart> charts;
  for (const auto &[title, over, key, isAmount] :
       {std::tuple("Loss against tokens", Over::kTokens, "loss", false),
        {"Loss against time", Over::kSeconds, "loss", false},
        {"Tokens per second", Over::kTokens, "tokens_per_second", true}}) {
    charts.push_back(
        {title, over == Over::kTokens ? "tokens" : "seconds", {}, isAmount});
    for (const RunFolder &run : runs)
      charts.back().lines.push_back(lineOver(over, run, key));
  }
  auto rows = comparisonRows(compared);
  TextRow head = std::move(rows.front());
  rows.erase(rows.begin());
  const Table sideBySide = {
      "Side by side", std::move(rows), std::move(head),
      "Compared with the first run. Verdicts use the bootstrap: an interval of "
      "95 % that contains no difference is a tie."};
  return pageHtml(
      {fmt::format("{}", fmt::join(names, ", ")),
       notes,
       charts,
       {sideBySide, {"Settings that differ", differingSettings(runs)}}});
}

StatusOr<std::string> writeComparison(const std::vector<RunFolder> &runs,
                                      const std::string &page) {
  const auto compared = compareRuns(runs);
  QLORA_RETURN_IF_ERROR(replaceWholeFile(page, comparisonPage(runs, compared)));
  return differencesText(runs) + "\n" + comparisonTable(compared) +
         fmt::format("\npage written to {}\n", shownPath(page));
}

} // namespace qlora
