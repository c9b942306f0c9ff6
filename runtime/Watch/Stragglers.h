// SPDX-License-Identifier: MIT

// Finds a rank that all others wait for: one whose step time without waits is
// well above the median.

#ifndef QLORA_RUNTIME_WATCH_STRAGGLERS_H
#define QLORA_RUNTIME_WATCH_STRAGGLERS_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace qlora {

class Stragglers {
public:
  /// Limits: this many times the median, and this many seconds above it, which
  /// exceeds thread start-up, in kInARow logged lines in a row.
  static constexpr double kSlower = 1.2, kLeastSeconds = 0.01;
  static constexpr int kInARow = 3;

  /// `hosts`: machine of each rank. `every`: steps per line. `mayAssign`: a
  /// rank can be given less work.
  Stragglers(std::vector<std::string> hosts, int64_t every, bool mayAssign)
      : hosts(std::move(hosts)), every(every), mayAssign(mayAssign) {}

  /// Checks a logged line, given each rank's own seconds per step. Returns a
  /// warning about the slowest rank, once until another rank or none is slow;
  /// else nothing.
  std::string check(std::span<const double> seconds);

private:
  const std::vector<std::string> hosts;
  const int64_t every;
  const bool mayAssign;
  size_t slowest = 0; ///< in the last lines
  int inARow = 0;     ///< lines in which it was slow
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_STRAGGLERS_H
