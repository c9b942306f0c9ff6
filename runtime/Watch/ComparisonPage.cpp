// SPDX-License-Identifier: MIT

// Writes the comparison of runs as an HTML page.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Watch/Chart.h"
#include "runtime/Watch/ReportPage.h"
#include "runtime/Watch/RunComparison.h"

namespace qlora {

using nlohmann::json;

namespace {
enum class Over { kTokens, kSeconds };
} // namespace

/// Returns the logged `key` over tokens or over seconds of training.
static ChartSeries series(const RunFolder &run, Over over, const char *key) {
  ChartSeries series{run.name, {}};
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
    series.points.push_back({at, numberOf(line, key)});
  }
  return series;
}

static std::string chart(const std::vector<RunFolder> &runs, const char *title,
                         Over over, const char *key, bool isAmount) {
  Chart chart{title, over == Over::kTokens ? "tokens" : "seconds", {},
              isAmount};
  for (const RunFolder &run : runs)
    chart.series.push_back(series(run, over, key));
  return chartSvg(chart);
}

static std::string rowHtml(const std::string &name,
                           const std::vector<std::string> &values) {
  std::string html =
      fmt::format("<tr><th scope=\"row\">{}</th>", escapeHtml(name));
  for (const std::string &value : values)
    html += "<td>" + escapeHtml(value) + "</td>";
  return html + "</tr>";
}

/// Returns an HTML table. `head`: header of the columns, or empty.
static std::string tableHtml(const char *title, const std::string &head,
                             const std::string &rows) {
  return fmt::format("<section><h2>{}</h2><div class=\"wide\"><table>{}<tbody>"
                     "{}</tbody></table></div></section>",
                     title, head, rows);
}

static std::string comparisonHtml(const std::vector<ComparedRun> &runs) {
  std::string head = "<thead><tr><th></th>", rows;
  for (const ComparedRun &run : runs)
    head += "<th>" + escapeHtml(run.name) + "</th>";
  for (const ComparisonRow &row : comparisonRows(runs))
    rows += rowHtml(row.name, row.values);
  return tableHtml("Side by side", head + "</tr></thead>", rows);
}

/// Lists the settings that differ between the runs.
static std::string differencesHtml(const std::vector<RunFolder> &runs) {
  std::string rows;
  for (const OptionRow &option : optionTable()) {
    if (std::string_view(option.name) == "output_dir")
      continue; // a path, not a setting
    std::vector<std::string> values;
    for (const RunFolder &run : runs)
      values.push_back(run.settings ? dumpJson(run.settings->value(option.name))
                                    : "–");
    if (std::ranges::count(values, values[0]) == std::ssize(values))
      continue;
    rows += rowHtml(option.name, values);
  }
  return rows.empty() ? "" : tableHtml("Settings that differ", "", rows);
}

std::string comparisonPage(const std::vector<RunFolder> &runs,
                           const std::vector<ComparedRun> &compared) {
  std::string title, html;
  for (const RunFolder &run : runs) {
    title += (title.empty() ? "" : ", ") + run.name;
    html += unreadableHtml("metrics.jsonl of " + run.name,
                           run.logged.unreadable);
  }
  html += "<section class=\"charts\">" +
          chart(runs, "Loss against tokens", Over::kTokens, "loss", false) +
          chart(runs, "Loss against time", Over::kSeconds, "loss", false) +
          chart(runs, "Tokens per second", Over::kTokens, "tokens_per_second",
                true) +
          "</section>";
  return pageHtml(
      title,
      html + comparisonHtml(compared) +
          "<p>Compared with the first run. Verdicts use the bootstrap: an "
          "interval of 95 % that contains no difference is a tie.</p>" +
          differencesHtml(runs));
}

StatusOr<std::string> writeComparison(const std::vector<RunFolder> &runs,
                                      const std::string &page) {
  const auto compared = compareRuns(runs);
  QLORA_RETURN_IF_ERROR(replaceWholeFile(page, comparisonPage(runs, compared)));
  return comparisonTable(compared) +
         fmt::format("\npage written to {}\n", shownPath(page));
}

} // namespace qlora
