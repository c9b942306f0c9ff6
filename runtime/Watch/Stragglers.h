// SPDX-License-Identifier: MIT

// Finds a rank that others wait for: its step time is well above the median.

#ifndef QLORA_RUNTIME_WATCH_STRAGGLERS_H
#define QLORA_RUNTIME_WATCH_STRAGGLERS_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace qlora {

class Stragglers {
public:
  /// Limits for a slow rank: kSlower times the median, and kLeastSeconds above
  /// it (more than thread start-up takes), in kInARow logged lines in a row.
  static constexpr double kSlower = 1.2, kLeastSeconds = 0.01;
  static constexpr int kInARow = 3;

  /// `hosts`: machine of each rank. `every`: steps per line. `mayAssign`:
  /// whether the user can assign less work to a rank.
  Stragglers(std::vector<std::string> hosts, int64_t every, bool mayAssign)
      : hosts(std::move(hosts)), every(every), mayAssign(mayAssign) {}

  /// Checks a logged line, given each rank's seconds per step without waits.
  /// Returns a warning when a rank has exceeded the limits in kInARow lines;
  /// else an empty string.
  std::string check(std::span<const double> seconds);

private:
  const std::vector<std::string> hosts;
  const int64_t every;
  const bool mayAssign;
  size_t slowest = 0; ///< slowest rank in the last lines
  int inARow = 0;     ///< lines in a row in which it was slow
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_STRAGGLERS_H
