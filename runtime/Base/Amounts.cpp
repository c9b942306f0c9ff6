// SPDX-License-Identifier: MIT

// Digits and units.

#include "runtime/Base/Amounts.h"

#include <fmt/format.h>

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
    text.insert(end - 3, ",");
  return text;
}

std::string formatParameters(uint64_t count) {
  const double value = static_cast<double>(count);
  if (value >= 999.95e6)
    return fmt::format("{:.1f} B", value / 1e9);
  if (value >= 999.5e3)
    return fmt::format("{:.1f} M", value / 1e6);
  return formatCount(count);
}

} // namespace qlora
