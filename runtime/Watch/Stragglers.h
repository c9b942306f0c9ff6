// SPDX-License-Identifier: MIT

// Finds a rank that all others wait for, by what each needs for a step without
// its waits for others: where one is well slower than the median, it is named.

#ifndef QLORA_RUNTIME_WATCH_STRAGGLERS_H
#define QLORA_RUNTIME_WATCH_STRAGGLERS_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace qlora {

class Stragglers {
public:
  /// This many times the median, and so much above it that it is not what starts
  /// of threads take; in this many logged lines in a row.
  static constexpr double kSlower = 1.2, kLeastSeconds = 0.01;
  static constexpr int kInARow = 3;

  /// By rank: on which machine each is. `every`: steps of a line. `mayDeal`: a
  /// rank can be given less to do.
  Stragglers(std::vector<std::string> hosts, int64_t every, bool mayDeal)
      : hosts(std::move(hosts)), every(every), mayDeal(mayDeal) {}

  /// After a logged line, whose steps took each rank so many seconds of its own
  /// work: what to say of the slowest one, once until it is another or none; else
  /// nothing.
  std::string check(std::span<const double> seconds);

private:
  const std::vector<std::string> hosts;
  const int64_t every;
  const bool mayDeal;
  size_t slowest = 0; ///< of the last lines
  int inARow = 0;     ///< in which it was well slower
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_STRAGGLERS_H
