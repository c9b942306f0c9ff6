// SPDX-License-Identifier: MIT

// Bootstrap of differences, and the comparison table.

#include "runtime/Watch/RunComparison.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "runtime/Base/Amounts.h"

namespace qlora {

using nlohmann::json;

static constexpr size_t kDraws = 2000, kFewest = 3;
static constexpr uint64_t kSeed = 20260101;

// The bootstrap
// -----------------------------------------------------------------------

/// Returns `value` with its interval. `draw` returns a resampled value.
static Estimate
estimate(double value, const std::function<double(std::mt19937_64 &)> &draw) {
  std::mt19937_64 random(kSeed);
  std::vector<double> values(kDraws);
  for (double &each : values)
    each = draw(random);
  if (!std::ranges::all_of(values, [](double v) { return std::isfinite(v); }))
    return {std::nan(""), std::nan(""), std::nan("")}; // a sum overflowed
  std::ranges::sort(values);
  return {value, values[kDraws / 40], values[kDraws - 1 - kDraws / 40]};
}

/// Returns the total tokens per total seconds of the windows.
static double rateOf(const std::vector<SpeedWindow> &windows) {
  double tokens = 0, seconds = 0;
  for (const SpeedWindow &window : windows) {
    tokens += window.tokens;
    seconds += window.seconds;
  }
  return tokens / seconds;
}

/// Returns the rate of resampled windows, in blocks that leave many blocks of
/// correlated neighbours.
static double drawRate(std::mt19937_64 &random,
                       const std::vector<SpeedWindow> &windows) {
  const size_t block =
      std::max<size_t>(1, std::lround(std::cbrt(windows.size())));
  std::vector<SpeedWindow> drawn;
  while (drawn.size() < windows.size()) {
    const size_t start = random() % (windows.size() - block + 1);
    for (size_t i = 0; i < block && drawn.size() < windows.size(); ++i)
      drawn.push_back(windows[start + i]);
  }
  return rateOf(drawn);
}

/// Combines the rates of both. Returns nullopt if either has too few windows.
static std::optional<Estimate>
estimateOf(const std::vector<SpeedWindow> &run,
           const std::vector<SpeedWindow> &first,
           const std::function<double(double, double)> &combine) {
  if (std::min(run.size(), first.size()) < kFewest)
    return std::nullopt;
  return estimate(combine(rateOf(run), rateOf(first)),
                  [&](std::mt19937_64 &random) {
                    const double own = drawRate(random, run);
                    return combine(own, drawRate(random, first));
                  });
}

std::optional<Estimate> speedRatio(const std::vector<SpeedWindow> &run,
                                   const std::vector<SpeedWindow> &first) {
  return estimateOf(run, first, std::divides());
}

/// Returns windows whose rate is the mean of the values.
static std::vector<SpeedWindow> unitsOf(const std::vector<double> &values) {
  std::vector<SpeedWindow> windows;
  for (const double value : values)
    windows.push_back({value, 1});
  return windows;
}

std::optional<Estimate> meanDifference(const std::vector<double> &run,
                                       const std::vector<double> &first,
                                       bool arePaired) {
  if (!arePaired || run.size() < kFewest)
    return estimateOf(unitsOf(run), unitsOf(first), std::minus());
  std::vector<double> differences(run.size());
  std::ranges::transform(run, first, differences.begin(), std::minus());
  const auto units = unitsOf(differences);
  return estimate(rateOf(units), [&](std::mt19937_64 &random) {
    return drawRate(random, units);
  });
}

// Runs
// -----------------------------------------------------------------------

/// Returns the windows between logged lines, except invalid ones.
static std::vector<SpeedWindow> windowsOf(const RunFolder &run) {
  std::vector<SpeedWindow> windows;
  const std::vector<json> &lines = run.logged.steps;
  for (size_t i = 1; i < lines.size(); ++i) {
    const double tokens = numberOf(lines[i], "num_input_tokens_seen") -
                          numberOf(lines[i - 1], "num_input_tokens_seen");
    const double seconds = tokens / numberOf(lines[i], "tokens_per_second");
    if (tokens > 0 && seconds > 0 && std::isfinite(seconds))
      windows.push_back({tokens, seconds});
  }
  return windows;
}

namespace {
struct EndLosses {
  std::vector<double> steps, losses;
};
} // namespace

static EndLosses endLosses(const RunFolder &run) {
  EndLosses all;
  for (const json &line : run.logged.steps)
    if (const double loss = numberOf(line, "loss"); std::isfinite(loss)) {
      all.steps.push_back(numberOf(line, "step"));
      all.losses.push_back(loss);
    }
  const size_t kept = std::min(all.losses.size(),
                               std::max(kFewest, (all.losses.size() + 3) / 4));
  const auto last = [&](std::vector<double> &values) {
    values.erase(values.begin(), values.end() - static_cast<int64_t>(kept));
  };
  last(all.steps);
  last(all.losses);
  return all;
}

/// Returns the largest of the logged peak and the logged memory of steps.
static double peakOf(const LoggedLines &logged) {
  double peak = numberOf(logged.totals, "peak_memory_bytes");
  for (const json &line : logged.steps)
    peak = std::fmax(peak, numberOf(line, "memory_bytes"));
  return peak;
}

/// Returns exposed communication / step time. Skips the first line (warm-up).
static double exposedShare(const std::vector<json> &lines) {
  double exposed = 0, seconds = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    exposed += numberOf(lines[i], "exposed_communication");
    seconds += numberOf(lines[i], "step_time");
  }
  return exposed / seconds;
}

std::vector<ComparedRun> compareRuns(const std::vector<RunFolder> &runs) {
  std::vector<ComparedRun> compared;
  const auto firstWindows = windowsOf(runs[0]);
  const EndLosses firstLosses = endLosses(runs[0]);
  for (const RunFolder &run : runs) {
    const LoggedLines &logged = run.logged;
    const json none = json::object();
    const json &last = logged.steps.empty() ? none : logged.steps.back();
    const auto windows = windowsOf(run);
    const EndLosses losses = endLosses(run);
    ComparedRun each;
    each.name = run.name;
    each.ranks = numberOf(run.environment, "ranks");
    each.steps = numberOf(logged.totals.empty() ? last : logged.totals, "step");
    each.tokens = numberOf(last, "num_input_tokens_seen");
    each.tokensPerSecond =
        windows.empty() ? numberOf(last, "tokens_per_second") : rateOf(windows);
    each.planned = numberOf(run.plan, "planned_bytes");
    each.peak = peakOf(logged);
    each.loss = rateOf(unitsOf(losses.losses)); // NaN if there are none
    each.evaluationLoss =
        logged.evaluations.empty()
            ? std::nan("")
            : numberOf(logged.evaluations.back(), "eval_loss");
    const bool isFirst = compared.empty();
    each.speedUp = isFirst ? std::nullopt : speedRatio(windows, firstWindows);
    each.efficiency = each.speedUp && each.ranks != compared[0].ranks
                          ? each.speedUp->value * compared[0].ranks / each.ranks
                          : std::nan("");
    each.exposed = exposedShare(logged.steps);
    each.lossDifference =
        isFirst ? std::nullopt
                : meanDifference(losses.losses, firstLosses.losses,
                                 losses.steps == firstLosses.steps);
    compared.push_back(std::move(each));
  }
  return compared;
}

// The table
// -----------------------------------------------------------------------

static std::string shown(double value, const char *form) {
  if (std::abs(value) >= 1e9) // since columns are narrow
    form = "{:.3g}";
  return std::isfinite(value) ? fmt::format(fmt::runtime(form), value) : "–";
}

static std::string shownCount(double value) {
  return value >= 0 && value < 1e15 ? formatCount(static_cast<uint64_t>(value))
                                    : "–";
}

static std::string shownBytes(double value) {
  return value > 0 && value < 1e18 ? formatBytes(static_cast<uint64_t>(value))
                                   : "–";
}

static std::string interval(const std::optional<Estimate> &estimate,
                            const char *form) {
  return estimate ? fmt::format("{} to {}", shown(estimate->low, form),
                                shown(estimate->high, form))
                  : "–";
}

static std::string verdict(const std::optional<Estimate> &estimate, double none,
                           const char *less, const char *more) {
  if (!estimate || !std::isfinite(estimate->value))
    return "–";
  if (estimate->low == none && estimate->high == none)
    return "the same";
  return estimate->holds(none) ? "tie" : estimate->value < none ? less : more;
}

std::vector<TextRow> comparisonRows(const std::vector<ComparedRun> &runs) {
  std::vector<TextRow> rows;
  const auto add = [&](const char *name, auto text) {
    TextRow row = {name};
    std::ranges::transform(runs, std::back_inserter(row), text);
    // Leave out rows in which no run has a value.
    if (std::ranges::count(row, "–") < std::ssize(runs))
      rows.push_back(std::move(row));
  };
  using Run = const ComparedRun &;
  add("", [](Run run) { return run.name; });
  add("ranks", [](Run run) { return shownCount(run.ranks); });
  add("steps", [](Run run) { return shownCount(run.steps); });
  add("tokens", [](Run run) { return shownCount(run.tokens); });
  add("tokens per second",
      [](Run run) { return shown(run.tokensPerSecond, "{:.0f}"); });
  add("speed-up", [](Run run) {
    return run.speedUp ? shown(run.speedUp->value, "{:.3f}") : "–";
  });
  add("  95 %", [](Run run) { return interval(run.speedUp, "{:.3f}"); });
  add("  verdict",
      [](Run run) { return verdict(run.speedUp, 1, "slower", "faster"); });
  add("scaling efficiency", [](Run run) {
    return std::isfinite(run.efficiency)
               ? fmt::format("{:.0f} %", 100 * run.efficiency)
               : "–";
  });
  add("exposed communication", [](Run run) {
    return std::isfinite(run.exposed)
               ? fmt::format("{:.1f} %", 100 * run.exposed)
               : "–";
  });
  add("memory planned", [](Run run) { return shownBytes(run.planned); });
  add("peak memory", [](Run run) { return shownBytes(run.peak); });
  add("final loss", [](Run run) { return shown(run.loss, "{:.4f}"); });
  add("  difference", [](Run run) {
    return run.lossDifference ? shown(run.lossDifference->value, "{:+.4f}")
                              : "–";
  });
  add("  95 %",
      [](Run run) { return interval(run.lossDifference, "{:+.4f}"); });
  add("  verdict", [](Run run) {
    return verdict(run.lossDifference, 0, "lower", "higher");
  });
  add("evaluation loss",
      [](Run run) { return shown(run.evaluationLoss, "{:.4f}"); });
  return rows;
}

/// Returns the terminal columns of UTF-8 text: "–" is one column.
static size_t widthOf(const std::string &text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

static std::string padded(const std::string &text, size_t width) {
  return std::string(width - std::min(width, widthOf(text)), ' ') + text;
}

std::string comparisonTable(const std::vector<ComparedRun> &runs) {
  constexpr size_t kNames = 21;
  const auto rows = comparisonRows(runs);
  std::vector<size_t> widths(runs.size() + 1, 0);
  for (const TextRow &row : rows)
    for (size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], widthOf(row[i]));
  std::string text;
  for (const TextRow &row : rows) {
    text += fmt::format("{:<{}}", row[0], kNames);
    for (size_t i = 1; i < row.size(); ++i)
      text += "  " + padded(row[i], widths[i]);
    text += "\n";
  }
  return text;
}

} // namespace qlora
