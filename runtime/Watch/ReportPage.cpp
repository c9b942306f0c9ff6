// SPDX-License-Identifier: MIT

// Makes charts and tables from the logged metrics.

#include "runtime/Watch/ReportPage.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/OptionTable.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Watch/Chart.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

using nlohmann::json;

static ChartSeries seriesOf(const std::vector<json> &lines,
                            const std::string &name, const char *key,
                            double unit = 1) {
  ChartSeries series{name, {}};
  for (const json &line : lines)
    series.points.push_back(
        {numberOf(line, "step"), numberOf(line, key) / unit});
  return series;
}

/// Returns a list with a value per rank; NaN for entries that are not numbers.
static std::vector<double> numbersOf(const json &line, const char *key) {
  std::vector<double> numbers;
  const auto list = line.find(key);
  if (list != line.end() && list->is_array())
    for (const json &number : *list)
      numbers.push_back(number.is_number() ? number.get<double>()
                                           : std::nan(""));
  return numbers;
}

/// Returns minimum and maximum of the values that are not NaN.
static std::vector<double> rangeOf(std::vector<double> numbers) {
  std::erase_if(numbers, [](double number) { return std::isnan(number); });
  if (numbers.empty())
    return {};
  return {std::ranges::min(numbers), std::ranges::max(numbers)};
}

/// Returns a series per rank. For more ranks than can be distinguished, returns
/// the minimum and the maximum.
static std::vector<ChartSeries> seriesOfRanks(const std::vector<json> &lines,
                                              const char *key, double unit) {
  constexpr size_t kMostLines = 4;
  size_t ranks = 0;
  for (const json &line : lines)
    ranks = std::max(ranks, numbersOf(line, key).size());
  std::vector<ChartSeries> series;
  if (ranks > kMostLines)
    series = {{"minimum over ranks", {}}, {"maximum over ranks", {}}};
  for (size_t rank = 0; rank < ranks && ranks <= kMostLines; ++rank)
    series.push_back({fmt::format("rank {}", rank), {}});
  for (const json &line : lines) {
    std::vector<double> numbers = numbersOf(line, key);
    if (ranks > kMostLines)
      numbers = rangeOf(std::move(numbers));
    numbers.resize(series.size(), std::nan(""));
    for (size_t i = 0; i < series.size(); ++i)
      series[i].points.push_back({numberOf(line, "step"), numbers[i] / unit});
  }
  return series;
}

static std::string chartsHtml(const LoggedLines &logged) {
  Chart loss{"Loss", "step", {seriesOf(logged.steps, "training", "loss")}};
  if (!logged.evaluations.empty())
    loss.series.push_back(
        seriesOf(logged.evaluations, "evaluation", "eval_loss"));
  constexpr double kMiB = 1 << 20;
  std::string html = "<section class=\"charts\">" + chartSvg(loss);
  for (const auto &[title, key, unit, isAmount] :
       {std::tuple("Learning rate", "learning_rate", 1.0, false),
        {"Gradient norm", "grad_norm", 1.0, false},
        {"Tokens per second", "tokens_per_second", 1.0, true}})
    html += chartSvg(
        {title, "step", {seriesOf(logged.steps, title, key, unit)}, isAmount});
  for (const auto &[title, key, unit] :
       {std::tuple("Memory, MiB", "rank_memory_bytes", kMiB),
        {"Step time without waiting, ms", "rank_step_time", 1e-3},
        {"GPU busy, %", "rank_gpu_utilization", 1.0},
        {"GPU power, W", "rank_gpu_power_watts", 1.0}}) {
    auto series = seriesOfRanks(logged.steps, key, unit);
    if (series.empty() && unit == kMiB)
      series = {seriesOf(logged.steps, title, "memory_bytes", unit)};
    if (!series.empty())
      html += chartSvg({title, "step", std::move(series), true});
  }
  return html + "</section>";
}

/// Returns a cell with a value of a line, or a dash if it is missing.
static std::string shown(const json &line, const char *name,
                         std::string_view form) {
  const double value = numberOf(line, name);
  return std::isfinite(value) ? fmt::format(fmt::runtime(form), value) : "–";
}

static std::string evaluationsHtml(const std::vector<json> &evaluations) {
  if (evaluations.empty())
    return "";
  std::string html =
      "<section><h2>Evaluations</h2><div class=\"wide\"><table><thead><tr>"
      "<th>step</th><th>epoch</th><th>loss</th><th>perplexity</th>"
      "<th>token accuracy</th>";
  const bool hasAnswers = std::ranges::any_of(
      evaluations,
      [](const json &line) { return !loggedMetricsText(line).empty(); });
  html += hasAnswers ? "<th>answers</th></tr></thead><tbody>"
                     : "</tr></thead><tbody>";
  for (const json &line : evaluations) {
    const double right = numberOf(line, "eval_token_accuracy");
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{}</tr>",
        shown(line, "step", "{:.0f}"), shown(line, "epoch", "{:.2f}"),
        shown(line, "eval_loss", "{:.4g}"),
        shown(line, "eval_perplexity", "{:.4g}"),
        std::isfinite(right) ? fmt::format("{:.1f} %", 100 * right) : "–",
        hasAnswers ? "<td>" + escapeHtml(loggedMetricsText(line)) + "</td>"
                   : "");
  }
  return html + "</tbody></table></div></section>";
}

/// Returns a table row. Both texts are escaped.
static std::string row(std::string_view name, std::string_view value) {
  return fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
                     escapeHtml(name), escapeHtml(value));
}

static std::string table(const std::string &title, const std::string &rows) {
  return rows.empty() ? ""
                      : "<section><h2>" + title + "</h2><table><tbody>" + rows +
                            "</tbody></table></section>";
}

static std::string totalsHtml(const LoggedLines &logged) {
  std::string rows;
  if (!logged.steps.empty() || !logged.totals.empty()) {
    const json &last =
        logged.totals.empty() ? logged.steps.back() : logged.totals;
    rows += row("steps", shown(last, "step", "{:.0f}"));
    rows += row("epochs", shown(last, "epoch", "{:.2f}"));
  }
  if (logged.totals.empty())
    return table("Result",
                 rows + row("end", "the run is not finished, or was "
                                   "interrupted; these are its values so far"));
  const double seconds = numberOf(logged.totals, "train_runtime");
  if (seconds >= 0 && seconds < 1e10)
    rows += row("time", formatDuration(seconds));
  rows += row("mean loss", shown(logged.totals, "train_loss", "{:.4f}"));
  rows += row("tokens per second",
              shown(logged.totals, "train_tokens_per_second", "{:.0f}"));
  for (const auto &[name, key] :
       {std::pair("memory planned", "planned_bytes"),
        {"predicted peak memory", "predicted_peak_memory_bytes"},
        {"measured peak memory", "peak_memory_bytes"}}) {
    const double bytes = numberOf(logged.totals, key);
    if (bytes >= 0 && bytes < 1e18)
      rows += row(name, formatBytes(static_cast<uint64_t>(bytes)));
  }
  return table("Result", rows);
}

/// Lists the bytes of each arena from plan.json.
static std::string planHtml(const json &plan) {
  std::string rows;
  const json arenas = plan.value("arenas", json());
  for (const auto &[name, bytes] : arenas.items())
    if (bytes.is_number_unsigned())
      rows += row(name, formatBytes(bytes.get<uint64_t>()));
  return table("Planned memory per rank", rows);
}

/// Lists the strings and numbers of environment.json.
static std::string machineHtml(const json &environment) {
  std::string rows;
  for (const auto &[name, value] : environment.items())
    if (value.is_primitive())
      rows += row(name, value.is_string() ? value.get<std::string>()
                                          : dumpJson(value));
  return table("Machine", rows);
}

/// Lists the options that differ from their defaults.
static std::string settingsHtml(const Options *settings) {
  if (!settings)
    return "<section><h2>Settings</h2><p>config.resolved.yaml cannot be "
           "read.</p></section>";
  const Options initial;
  std::string rows;
  for (const OptionRow &option : optionTable()) {
    const auto &value = settings->value(option.name);
    if (value == initial.value(option.name))
      continue;
    rows += row(option.name,
                value.is_string() ? value.get<std::string>() : dumpJson(value));
  }
  return table("Settings that differ from the defaults", rows);
}

static constexpr std::string_view kPageStyle = R"(
:root{color-scheme:light dark;--page:#fff;--ink:#1a1c1f;--rule:#d5d9de}
@media(prefers-color-scheme:dark){:root{--page:#16181b;--ink:#e8eaed;
--rule:#3a3f45}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--page);
color:var(--ink);font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.1rem}
section{margin:0 0 1.5rem}
.charts{display:grid;gap:1.5rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr))}
table{border-collapse:collapse;font-size:.92rem}
.answer{max-height:12rem;min-width:12rem;overflow:auto;white-space:pre-wrap}
.wide{overflow-x:auto}.wide td,.wide th{white-space:nowrap;overflow-wrap:normal}
th,td{text-align:left;vertical-align:top;padding:.25rem .9rem .25rem 0;
border-bottom:1px solid var(--rule)}
th{font-weight:600}td{overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
)";

std::string pageHtml(const std::string &title, const std::string &content) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,"
      "initial-scale=1\"><title>{0}</title><style>{1}{2}</style></head><body>"
      "<h1>{0}</h1>{3}</body></html>\n",
      escapeHtml(title), kPageStyle, chartStyle(), content);
}

std::string unreadableHtml(const std::string &name, size_t lines) {
  return lines == 0 ? ""
                    : fmt::format(
                          "<p>Skipped lines of {} that cannot be read: {}.</p>",
                          escapeHtml(name), formatCount(lines));
}

std::string reportPage(const RunFolder &run) {
  const LoggedLines &logged = run.logged;
  return pageHtml(run.name,
                  unreadableHtml(kMetricsFile, logged.unreadable) +
                      chartsHtml(logged) + evaluationsHtml(logged.evaluations) +
                      answersHtml(run.answers) +
                      totalsHtml(logged) + planHtml(run.plan) +
                      machineHtml(run.environment) +
                      settingsHtml(run.settings ? &*run.settings : nullptr));
}

Status writeReport(const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(const RunFolder run, RunFolder::read(folder));
  return replaceWholeFile(folder + "/" + kReportFile, reportPage(run));
}

} // namespace qlora
