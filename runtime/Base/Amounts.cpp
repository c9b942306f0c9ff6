// SPDX-License-Identifier: MIT

// Formats amounts with few digits and a unit.

#include "runtime/Base/Amounts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace qlora {

std::string formatBytes(uint64_t bytes) {
  constexpr const char *kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0)
    return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string formatCount(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t end = text.size(); end > 3; end -= 3)
    text.insert(end - 3, 1, ',');
  return text;
}

std::string formatCounted(int64_t count, const char *one) {
  return fmt::format("{} {}{}", formatCount(static_cast<uint64_t>(count)), one,
                     count == 1 ? "" : "s");
}

std::string formatParameters(uint64_t count) {
  const double value = static_cast<double>(count);
  if (value >= 999.95e6)
    return fmt::format("{:.1f} B", value / 1e9);
  if (value >= 999.5e3)
    return fmt::format("{:.1f} M", value / 1e6);
  return formatCount(count);
}

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
    return std::abs(value) < 1e3 ? fmt::format("{:.3g}", value)
                                 : fmt::format("{:.0f}", value);
  int exponent = static_cast<int>(std::floor(std::log10(std::abs(value))));
  double mantissa = value / std::pow(10.0, exponent);
  // A mantissa such as 9.96 rounds to 10.
  if (std::abs(mantissa) >= 9.95) {
    mantissa /= 10;
    ++exponent;
  }
  return fmt::format("{:.2g}e{}", mantissa, exponent);
}

} // namespace qlora
