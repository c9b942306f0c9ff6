// SPDX-License-Identifier: MIT

// Formatting for people.

#include "runtime/Session/ReportText.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace qlora {

std::string formatDuration(double seconds) {
  int64_t whole = static_cast<int64_t>(std::max(0.0, seconds + 0.5));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60,
                     whole % 60);
}

std::string formatRate(double perSecond) {
  if (perSecond >= 1e6)
    return fmt::format("{:.1f}M", perSecond / 1e6);
  if (perSecond >= 1e4)
    return fmt::format("{:.1f}k", perSecond / 1e3);
  return fmt::format("{:.0f}", perSecond);
}

std::string formatShort(double value) {
  bool isPlain =
      value == 0 || (std::abs(value) >= 1e-2 && std::abs(value) < 1e4);
  if (isPlain)
    return fmt::format("{:.3g}", value);
  int exponent = static_cast<int>(std::floor(std::log10(std::abs(value))));
  double mantissa = value / std::pow(10.0, exponent);
  // 9.96 would be written 10.0.
  if (std::abs(mantissa) >= 9.95) {
    mantissa /= 10;
    ++exponent;
  }
  return fmt::format("{:.2g}e{}", mantissa, exponent);
}

std::string progressLine(const StepReport &r) {
  int64_t percent = r.totalSteps > 0 ? 100 * r.step / r.totalSteps : 100;
  return fmt::format(
      "step {}/{} {}% | loss {:.4f} | gnorm {} | lr {} | {:.0f} ms | {} tok/s "
      "| mem {} (plan {}) | eta {}",
      r.step, r.totalSteps, percent, r.loss, formatShort(r.gradNorm),
      formatShort(r.learningRate), r.stepSeconds * 1e3,
      formatRate(r.tokensPerSecond), formatBytes(r.memoryBytes),
      formatBytes(r.plannedBytes), formatDuration(r.etaSeconds));
}

std::string progressBar(int64_t step, int64_t totalSteps, double etaSeconds,
                        int columns) {
  std::string tail = fmt::format("] {}/{} eta {}", step, totalSteps,
                                 formatDuration(etaSeconds));
  int width = std::max(4, columns - static_cast<int>(tail.size()) - 2);
  int64_t done = totalSteps > 0 ? step * width / totalSteps : width;
  std::string bar(static_cast<size_t>(done), '=');
  if (done < width)
    bar += '>';
  bar.resize(static_cast<size_t>(width), ' ');
  return "[" + bar + tail;
}

std::string planTable(const std::string &title, std::span<const PlanRow> rows,
                      bool withMeasured) {
  PlanRow total{"total", 0, 0, ""};
  for (const PlanRow &row : rows)
    if (row.isCounted) {
      total.planned += row.planned;
      total.measured += row.measured;
    }
  auto line = [&](const PlanRow &row) {
    std::string text =
        fmt::format("  {:<24} {:>10}", row.name, formatBytes(row.planned));
    if (withMeasured)
      text += fmt::format(" {:>10}", formatBytes(row.measured));
    return text + (row.note.empty() ? "\n" : "  " + row.note + "\n");
  };
  std::string table = fmt::format("{:<26} {:>10}{}\n", title, "plan",
                                  withMeasured ? "   measured" : "");
  std::string beside;
  for (const PlanRow &row : rows)
    (row.isCounted ? table : beside) += line(row);
  return table + line(total) + beside;
}

} // namespace qlora
