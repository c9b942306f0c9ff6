// SPDX-License-Identifier: MIT

// Times collectives and fits a line to the times.

#include "runtime/Predict/LinkRates.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <limits>
#include <vector>

#include "runtime/ABI/collective.h"
#include "runtime/Device/Cpu/CommunicationQueue.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

/// Bytes of the larger operand, before rounding to whole f32 for each rank.
static constexpr uint64_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 8 << 20};
/// Number of sizes that are measured even on a slow network.
static constexpr size_t kLeastSizes = 2;
/// Calls that would take longer are skipped.
static constexpr double kLongestSeconds = 0.12;
static constexpr double kSecondsPerSize = 0.06;
static constexpr int kLeastCalls = 5, kMostCalls = 101;

namespace {
/// Seconds per message and per byte.
struct Line {
  double message = 0, byte = 0;

  double at(const LinkUse &use) const {
    return use.messages * message + use.bytes * byte;
  }
};
} // namespace

/// Returns lower bounds: a tenth of the minimum time per message and per byte.
static Line leastOf(std::span<const LinkSample> samples) {
  Line least = {std::numeric_limits<double>::infinity(),
                std::numeric_limits<double>::infinity()};
  for (const auto &[use, seconds] : samples) {
    least.message = std::min(least.message, 0.1 * seconds / use.messages);
    least.byte = std::min(least.byte, 0.1 * seconds / use.bytes);
  }
  return least;
}

/// Fits by least squares. Each error is divided by the geometric mean of the
/// measured time and the time that the previous fit, `before`, predicts.
static Line fitOnce(std::span<const LinkSample> samples, const Line &before,
                    const Line &least) {
  double mm = 0, mb = 0, bb = 0, ms = 0, bs = 0;
  for (const auto &[use, seconds] : samples) {
    const double weight = 1 / (seconds * before.at(use));
    mm += weight * use.messages * use.messages;
    mb += weight * use.messages * use.bytes;
    bb += weight * use.bytes * use.bytes;
    ms += weight * use.messages * seconds;
    bs += weight * use.bytes * seconds;
  }
  const double determinant = mm * bb - mb * mb;
  assert(determinant > 0 && "samples of two sizes");
  Line line = {(ms * bb - bs * mb) / determinant,
               (bs * mm - ms * mb) / determinant};
  if (line.message < least.message)
    line = {least.message, (bs - least.message * mb) / bb};
  else if (line.byte < least.byte)
    line = {(ms - least.byte * mb) / mm, least.byte};
  return line;
}

LinkRate fitLink(std::span<const LinkSample> samples) {
  constexpr int kRounds = 20;
  const Line least = leastOf(samples);
  Line line = least;
  for (int i = 0; i < kRounds; ++i)
    line = fitOnce(samples, line, least);
  return {line.message * 1e6, 1e-9 / line.byte};
}

namespace {

/// Runs collectives of a group as a step does: in another thread than the one
/// that waits, on memory that is no longer in a core's cache.
class Calls {
public:
  explicit Calls(Collectives &group)
      : group(group), to(wholeBytes(kMemory)), from(to.size()),
        queue([this](const qlora_command &) { return this->group.run(call); },
              /*maxCommands=*/1, /*maxEvents=*/0) {}

  /// Rounds `bytes` down to a whole number of f32 per rank, at least one.
  uint64_t wholeBytes(uint64_t bytes) const {
    const uint64_t least = ranks() * sizeof(float);
    return std::max<uint64_t>(1, bytes / least) * least;
  }
  /// Times one call, which all ranks begin together.
  StatusOr<double> secondsOf(qlora_collective kind, uint64_t bytes);

private:
  /// Size of the operands' memory: larger than a core's own cache, but not
  /// larger than the cache that cores share.
  static constexpr uint64_t kMemory = 8 << 20;

  uint64_t ranks() const { return static_cast<uint64_t>(group.size()); }
  void choose(qlora_collective kind, uint64_t bytes);

  Collectives &group;
  std::vector<uint8_t> to, from;
  uint64_t next = 0; ///< offset of the next call's operands
  CollectiveCall call;
  const qlora_command command = {};
  CommunicationQueue queue; ///< declared last, since it uses the members above
};

} // namespace

void Calls::choose(qlora_collective kind, uint64_t bytes) {
  if (next + bytes > to.size())
    next = 0;
  const std::span<uint8_t> all = std::span(to).subspan(next, bytes);
  const std::span<const uint8_t> given = std::span(from).subspan(next, bytes);
  next += bytes;
  const bool isScatter = kind == QLORA_COLLECTIVE_REDUCE_SCATTER;
  call = {};
  call.kind = kind;
  call.to = isScatter ? all.first(bytes / ranks()) : all;
  if (isScatter || kind == QLORA_COLLECTIVE_ALL_TO_ALL)
    call.from = given;
  else if (kind == QLORA_COLLECTIVE_ALL_GATHER)
    call.from = given.first(bytes / ranks());
}

StatusOr<double> Calls::secondsOf(qlora_collective kind, uint64_t bytes) {
  choose(kind, bytes);
  QLORA_RETURN_IF_ERROR(group.barrier());
  const Clock::time_point start = Clock::now();
  queue.begin();
  queue.push(command);
  QLORA_RETURN_IF_ERROR(queue.finish());
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Returns the maximum of `own` over the ranks of the group.
static StatusOr<double> most(Collectives &group, double own) {
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::vector<double>> all,
      group.allGatherValues(std::span<const double>(&own, 1)));
  for (const std::vector<double> &each : all)
    own = std::max(own, each.at(0));
  return own;
}

/// Returns the slowest rank's median. The second of two warm-up calls
/// determines how many calls fit into the time limit.
static StatusOr<double> medianSeconds(Collectives &group, Calls &calls,
                                      qlora_collective kind, uint64_t bytes) {
  QLORA_RETURN_IF_ERROR(calls.secondsOf(kind, bytes).status());
  QLORA_ASSIGN_OR_RETURN(const double own, calls.secondsOf(kind, bytes));
  QLORA_ASSIGN_OR_RETURN(const double once, most(group, own));
  const int count = static_cast<int>(
      std::clamp<double>(kSecondsPerSize / once, kLeastCalls, kMostCalls));
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    QLORA_ASSIGN_OR_RETURN(const double one, calls.secondsOf(kind, bytes));
    seconds.push_back(one);
  }
  const auto middle = seconds.begin() + seconds.size() / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return most(group, *middle);
}

/// Fits a link's rates to the times of `kinds`, in sizes that are fast enough.
static StatusOr<LinkRate>
measureLink(Collectives &group, std::span<const qlora_collective> kinds,
            LinkUse (*useOf)(unsigned, double, int64_t)) {
  Calls calls(group);
  std::vector<LinkSample> samples;
  for (const qlora_collective kind : kinds) {
    double secondsOfByte = 0;
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      const uint64_t bytes = calls.wholeBytes(kSizes[i]);
      if (i >= kLeastSizes &&
          secondsOfByte * static_cast<double>(bytes) > kLongestSeconds)
        break;
      QLORA_ASSIGN_OR_RETURN(const double seconds,
                             medianSeconds(group, calls, kind, bytes));
      samples.push_back(
          {useOf(kind, static_cast<double>(bytes), group.size()), seconds});
      secondsOfByte = seconds / static_cast<double>(bytes);
    }
  }
  return fitLink(samples);
}

StatusOr<RankLinks> measureLinks(RankGroup &ranks) {
  constexpr qlora_collective kInWindow[] = {QLORA_COLLECTIVE_ALL_REDUCE,
                                            QLORA_COLLECTIVE_ALL_GATHER,
                                            QLORA_COLLECTIVE_REDUCE_SCATTER};
  constexpr qlora_collective kRound[] = {QLORA_COLLECTIVE_ALL_TO_ALL,
                                         QLORA_COLLECTIVE_BROADCAST};
  Collectives &machine = ranks.collectives(QLORA_GROUP_TP);
  RankLinks links;
  if (machine.size() > 1) {
    QLORA_ASSIGN_OR_RETURN(links.window,
                           measureLink(machine, kInWindow, windowUse));
    QLORA_ASSIGN_OR_RETURN(links.sockets,
                           measureLink(machine, kRound, socketUse));
  }
  if (machine.size() == ranks.size())
    return links;
  constexpr qlora_collective kBetween[] = {QLORA_COLLECTIVE_ALL_REDUCE,
                                           QLORA_COLLECTIVE_ALL_GATHER,
                                           QLORA_COLLECTIVE_ALL_TO_ALL};
  links.ranksPerNode = machine.size();
  QLORA_ASSIGN_OR_RETURN(links.network,
                         measureLink(ranks.collectives(), kBetween, ringUse));
  return links;
}

} // namespace qlora
