// SPDX-License-Identifier: MIT

// Selects the charts and tables of a run.

#include "runtime/Watch/ReportPage.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionTable.h"
#include "runtime/Watch/Metrics.h"
#include "runtime/Watch/PageData.h"

namespace qlora {

using nlohmann::json;

static ChartLine lineOf(const std::vector<json> &lines, const char *name,
                        const char *key, double unit = 1) {
  std::vector<ChartPoint> points;
  for (const json &line : lines)
    points.push_back({numberOf(line, "step"), numberOf(line, key) / unit});
  return {name, points};
}

/// Returns the values of a list; NaN for entries that are not numbers.
static std::vector<double> numbersOf(const json &line, const char *key) {
  std::vector<double> numbers;
  if (const auto list = line.find(key); list != line.end() && list->is_array())
    for (const json &number : *list)
      numbers.push_back(number.is_number() ? number.get<double>()
                                           : std::nan(""));
  return numbers;
}

/// Returns a line per rank. For more ranks than can be distinguished, returns
/// the minimum and the maximum.
static std::vector<ChartLine> linesOfRanks(const std::vector<json> &lines,
                                           const char *key, double unit) {
  size_t ranks = 0;
  for (const json &line : lines)
    ranks = std::max(ranks, numbersOf(line, key).size());
  std::vector<std::vector<ChartPoint>> points(ranks + 2);
  for (const json &line : lines) {
    std::vector<double> numbers = numbersOf(line, key);
    numbers.resize(ranks, std::nan(""));
    double least = std::nan(""), greatest = least; // stay NaN without numbers
    for (const double number : numbers) {
      least = std::fmin(least, number);
      greatest = std::fmax(greatest, number);
    }
    numbers.insert(numbers.end(), {least, greatest});
    for (size_t i = 0; i < numbers.size(); ++i)
      points[i].push_back({numberOf(line, "step"), numbers[i] / unit});
  }
  constexpr size_t kMostLines = 4;
  if (ranks > kMostLines)
    return {{"minimum over ranks", points[ranks]},
            {"maximum over ranks", points[ranks + 1]}};
  std::vector<ChartLine> drawn;
  for (size_t rank = 0; rank < ranks; ++rank)
    drawn.emplace_back(fmt::format("rank {}", rank), points[rank]);
  return drawn;
}

static std::vector<Chart> chartsOf(const LoggedLines &logged) {
  std::vector<ChartLine> losses = {lineOf(logged.steps, "training", "loss")};
  if (!logged.evaluations.empty())
    losses.push_back(lineOf(logged.evaluations, "evaluation", "eval_loss"));
  std::vector<Chart> charts = {{"Loss", "step", losses}};
  for (const auto &[title, key, isAmount] :
       {std::tuple("Learning rate", "learning_rate", false),
        {"Gradient norm", "grad_norm", false},
        {"Tokens per second", "tokens_per_second", true}})
    charts.push_back(
        {title, "step", {lineOf(logged.steps, title, key)}, isAmount});
  constexpr double kMiB = 1 << 20;
  for (const auto &[title, key, unit] :
       {std::tuple("Memory, MiB", "rank_memory_bytes", kMiB),
        {"Step time without waiting, ms", "rank_step_time", 1e-3},
        {"GPU busy, %", "rank_gpu_utilization", 1.0},
        {"GPU power, W", "rank_gpu_power_watts", 1.0}}) {
    auto lines = linesOfRanks(logged.steps, key, unit);
    if (lines.empty() && unit == kMiB)
      lines = {lineOf(logged.steps, title, "memory_bytes", unit)};
    if (!lines.empty())
      charts.push_back({title, "step", std::move(lines), true});
  }
  return charts;
}

/// Returns a cell with a value of a line, or a dash if it is missing.
static std::string shown(const json &line, const char *name,
                         std::string_view form) {
  const double value = numberOf(line, name);
  return std::isfinite(value) ? fmt::format(fmt::runtime(form), value) : "–";
}

static Table evaluationsTable(const std::vector<json> &evaluations) {
  TextRow head = {"step", "epoch", "loss", "perplexity", "token accuracy"};
  std::vector<TextRow> rows;
  for (const json &line : evaluations) {
    const double right = numberOf(line, "eval_token_accuracy");
    rows.push_back(
        {shown(line, "step", "{:.0f}"), shown(line, "epoch", "{:.2f}"),
         shown(line, "eval_loss", "{:.4g}"),
         shown(line, "eval_perplexity", "{:.4g}"),
         std::isfinite(right) ? fmt::format("{:.1f} %", 100 * right) : "–",
         loggedMetricsText(line)});
  }
  if (std::ranges::any_of(rows,
                          [](const TextRow &row) { return !row[5].empty(); }))
    head.push_back("answers");
  for (TextRow &row : rows)
    row.resize(head.size());
  return {"Evaluations", std::move(rows), std::move(head)};
}

static Table resultTable(const LoggedLines &logged) {
  std::vector<TextRow> rows;
  if (!logged.steps.empty() || !logged.totals.empty()) {
    const json &last =
        logged.totals.empty() ? logged.steps.back() : logged.totals;
    rows.push_back({"steps", shown(last, "step", "{:.0f}")});
    rows.push_back({"epochs", shown(last, "epoch", "{:.2f}")});
  }
  if (logged.totals.empty()) {
    rows.push_back({"end", "the run is not finished, or was interrupted; these "
                           "are its values so far"});
    return {"Result", std::move(rows)};
  }
  const double seconds = numberOf(logged.totals, "train_runtime");
  if (seconds >= 0 && seconds < 1e10)
    rows.push_back({"time", formatDuration(seconds)});
  rows.push_back({"mean loss", shown(logged.totals, "train_loss", "{:.4f}")});
  rows.push_back({"tokens per second",
                  shown(logged.totals, "train_tokens_per_second", "{:.0f}")});
  for (const auto &[name, key] :
       {std::pair("memory planned", "planned_bytes"),
        {"predicted peak memory", "predicted_peak_memory_bytes"},
        {"measured peak memory", "peak_memory_bytes"}}) {
    const double bytes = numberOf(logged.totals, key);
    if (bytes >= 0 && bytes < 1e18)
      rows.push_back({name, formatBytes(static_cast<uint64_t>(bytes))});
  }
  return {"Result", std::move(rows)};
}

/// Lists the bytes of each arena from plan.json.
static Table planTable(const json &plan) {
  std::vector<TextRow> rows;
  const json arenas = plan.value("arenas", json());
  for (const auto &[name, bytes] : arenas.items())
    if (bytes.is_number_unsigned())
      rows.push_back({name, formatBytes(bytes.get<uint64_t>())});
  return {"Planned memory per rank", std::move(rows)};
}

static std::string plainText(const json &value) {
  return value.is_string() ? value.get<std::string>() : dumpJson(value);
}

/// Lists the strings and numbers of environment.json.
static Table machineTable(const json &environment) {
  std::vector<TextRow> rows;
  for (const auto &[name, value] : environment.items())
    if (value.is_primitive())
      rows.push_back({name, plainText(value)});
  return {"Machine", std::move(rows)};
}

/// Lists the options that differ from their defaults.
static Table settingsTable(const std::optional<Options> &settings) {
  if (!settings)
    return {"Settings", {}, {}, "config.resolved.yaml cannot be read."};
  const Options initial;
  std::vector<TextRow> rows;
  for (const OptionRow &option : optionTable())
    if (const auto &value = settings->value(option.name);
        value != initial.value(option.name))
      rows.push_back({option.name, plainText(value)});
  return {"Settings that differ from the defaults", std::move(rows)};
}

std::string reportPage(const RunFolder &run) {
  const LoggedLines &logged = run.logged;
  return pageHtml(
      {run.name,
       {unreadableText(kMetricsFile, logged.unreadable)},
       chartsOf(logged),
       {evaluationsTable(logged.evaluations), answersTable(run.answers),
        resultTable(logged), planTable(run.plan), machineTable(run.environment),
        settingsTable(run.settings)}});
}

Status writeReport(const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(const RunFolder run, RunFolder::read(folder));
  return replaceWholeFile(folder + "/" + kReportFile, reportPage(run));
}

} // namespace qlora
