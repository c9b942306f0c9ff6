// SPDX-License-Identifier: MIT

// The comparison as a page.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/Watch/Chart.h"
#include "runtime/Watch/ReportPage.h"
#include "runtime/Watch/RunComparison.h"

namespace qlora {

using nlohmann::json;

/// `lines` over tokens; over the seconds of training so far where `isTime`.
static ChartSeries series(const RunFolder &run, bool isTime, const char *key) {
  ChartSeries series{run.name, {}};
  double seconds = 0, tokens = 0;
  for (const json &line : run.logged.steps) {
    const double seen = numberOf(line, "num_input_tokens_seen");
    // A line whose time is not known has no place, and the next goes on.
    const double taken = (seen - tokens) / numberOf(line, "tokens_per_second");
    seconds += std::isfinite(taken) ? taken : 0;
    tokens = std::isfinite(seen) ? seen : tokens;
    const double at = !isTime ? seen : std::isfinite(taken) ? seconds : taken;
    series.points.push_back({at, numberOf(line, key)});
  }
  return series;
}

static std::string chart(const std::vector<RunFolder> &runs, const char *title,
                         const char *xName, const char *key, bool isAmount) {
  Chart chart{title, xName, {}, isAmount};
  const bool isTime = std::string_view(xName) == "seconds";
  for (const RunFolder &run : runs)
    chart.series.push_back(series(run, isTime, key));
  return chartSvg(chart);
}

static std::string tableHtml(const std::vector<ComparedRun> &runs) {
  std::string html = "<section><h2>Side by side</h2><div class=\"wide\"><table>"
                     "<thead><tr><th></th>";
  for (const ComparedRun &run : runs)
    html += "<th>" + escapeHtml(run.name) + "</th>";
  html += "</tr></thead><tbody>";
  for (const ComparisonRow &row : comparisonRows(runs)) {
    html += fmt::format("<tr><th scope=\"row\">{}</th>", escapeHtml(row.name));
    for (const std::string &value : row.values)
      html += "<td>" + escapeHtml(value) + "</td>";
    html += "</tr>";
  }
  return html + "</tbody></table></div></section>";
}

/// Settings that are not the same in all runs.
static std::string differencesHtml(const std::vector<RunFolder> &runs) {
  std::string rows;
  for (const OptionRow &option : optionTable()) {
    if (std::string_view(option.name) == "output_dir")
      continue; // where a run is, and no setting of it
    std::vector<std::string> values;
    for (const RunFolder &run : runs)
      values.push_back(run.settings
                           ? run.settings->value(option.name).dump(
                                 -1, ' ', false,
                                 json::error_handler_t::replace)
                           : "–");
    if (std::ranges::count(values, values[0]) == std::ssize(values))
      continue;
    rows += fmt::format("<tr><th scope=\"row\">{}</th>", option.name);
    for (const std::string &value : values)
      rows += "<td>" + escapeHtml(value) + "</td>";
    rows += "</tr>";
  }
  if (rows.empty())
    return "";
  return "<section><h2>Settings that differ</h2><div class=\"wide\"><table>"
         "<tbody>" +
         rows + "</tbody></table></div></section>";
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
          chart(runs, "Loss against tokens", "tokens", "loss", false) +
          chart(runs, "Loss against time", "seconds", "loss", false) +
          chart(runs, "Tokens per second", "tokens", "tokens_per_second",
                true) +
          "</section>";
  return pageHtml(title, html + tableHtml(compared) +
                             "<p>Compared with the first. A verdict is by the "
                             "bootstrap: where the 95 % interval holds no "
                             "difference, it is a tie.</p>" +
                             differencesHtml(runs));
}

} // namespace qlora
