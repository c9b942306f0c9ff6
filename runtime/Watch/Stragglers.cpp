// SPDX-License-Identifier: MIT

// Compares step times with the median.

#include "runtime/Watch/Stragglers.h"

#include <algorithm>

#include "fmt/format.h"

namespace qlora {

/// Returns the lower median, which the slower of two ranks exceeds.
static double medianOf(std::span<const double> seconds) {
  std::vector<double> sorted(seconds.begin(), seconds.end());
  const auto middle =
      sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::string Stragglers::check(std::span<const double> seconds) {
  const auto found = static_cast<size_t>(
      std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
  const double own = seconds[found], median = medianOf(seconds);
  if (own < std::max(kSlower * median, median + kLeastSeconds)) {
    inARow = 0;
    return "";
  }
  inARow = found == slowest ? inARow + 1 : 1;
  slowest = found;
  if (inARow != kInARow)
    return "";
  return fmt::format(
      "rank {} ({}) has been {:.1f} x slower than the median rank for {} "
      "steps: its work takes {:.0f} ms per step, the median {:.0f} ms, and all "
      "ranks wait for it. Fix: check what else runs there{}",
      found, hosts[found], own / median, kInARow * every, 1e3 * own,
      1e3 * median,
      mayAssign ? ", or give it fewer micro-batches with --rank-speeds" : "");
}

} // namespace qlora
