// SPDX-License-Identifier: MIT

// Formats columns, bars and rates.

#include "runtime/Watch/ProgressLine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/Base/Amounts.h"

namespace qlora {

/// Returns the width of the last and widest step, such as "120/1000".
static size_t stepWidth(int64_t totalSteps) {
  return std::max<size_t>(8, 2 * std::to_string(totalSteps).size() + 1);
}

static constexpr const char *kStepColumns =
    "{:>{}} {:>7} {:>8}{} {:>9} {:>8} {:>7}{} {:>9}";

/// Returns the columns of rewards after the loss, or else of the speed.
static std::pair<std::string, std::string> middle(bool hasRewards,
                                                  std::string_view accuracy,
                                                  std::string_view margin,
                                                  std::string_view speed) {
  if (hasRewards)
    return {fmt::format(" {:>4} {:>7}", accuracy, margin), ""};
  return {"", fmt::format(" {:>7}", speed)};
}

std::string stepHeading(int64_t totalSteps, bool hasRewards) {
  const auto [rewards, speed] = middle(hasRewards, "acc", "margin", "tok/s");
  return fmt::format(kStepColumns, "step", stepWidth(totalSteps), "epoch",
                     "loss", rewards, "grad norm", "lr", "ms/step", speed,
                     "time left");
}

std::string stepLine(const StepReport &r) {
  const auto number = [](double value, int digits) {
    return std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, digits);
  };
  const RewardReport own = r.rewards.value_or(RewardReport());
  const auto [rewards, speed] =
      middle(r.rewards.has_value(), number(own.accuracy, 2),
             number(own.margin, 3), formatRate(r.tokensPerSecond));
  return fmt::format(kStepColumns, fmt::format("{}/{}", r.step, r.totalSteps),
                     stepWidth(r.totalSteps), fmt::format("{:.2f}", r.epoch),
                     fmt::format("{:.4f}", r.loss), rewards,
                     formatShort(r.gradNorm), formatShort(r.learningRate),
                     fmt::format("{:.0f}", r.stepSeconds * 1e3), speed,
                     formatDuration(r.etaSeconds));
}

/// Returns "1.2 GiB/s, 0:00:12 left"; empty if there is no rate yet.
static std::string rateText(const ProgressView &view) {
  if (view.done == 0 || view.seconds <= 0)
    return "";
  const double rate = static_cast<double>(view.done) / view.seconds;
  std::string text =
      view.isBytes
          ? fmt::format(", {}/s", formatBytes(static_cast<uint64_t>(rate)))
          : fmt::format(", {} {}/s", formatRate(rate), view.unit);
  if (view.total >= view.done && view.total > 0)
    text += ", " +
            formatDuration(static_cast<double>(view.total - view.done) / rate) +
            " left";
  return text;
}

std::string progressBar(const ProgressView &view, int columns) {
  if (view.total == 0)
    return progressLine(view).substr(0, static_cast<size_t>(columns));
  const uint64_t done = std::min(view.done, view.total);
  std::string head = view.what + " [";
  std::string tail =
      fmt::format("] {} %{}", 100 * done / view.total, rateText(view));
  const int room = columns - static_cast<int>(head.size() + tail.size());
  const auto width = static_cast<uint64_t>(std::max(4, room));
  const uint64_t filled = width * done / view.total;
  std::string bar(filled, '=');
  if (filled < width)
    bar += '>';
  bar.resize(width, ' ');
  return (head + bar + tail).substr(0, static_cast<size_t>(columns));
}

std::string progressLine(const ProgressView &view) {
  const auto count = [&](uint64_t value) {
    return view.isBytes ? formatBytes(value) : formatCount(value);
  };
  std::string text = fmt::format("{}: {}", view.what, count(view.done));
  if (view.total > 0)
    text += " of " + count(view.total);
  if (!view.isBytes)
    text += " " + view.unit;
  return text + rateText(view);
}

} // namespace qlora
