// SPDX-License-Identifier: MIT

// Profiles as numbers, from rank to rank.

#include "runtime/Watch/ProfileData.h"

namespace qlora {

std::string_view hostWorkName(HostWork work) {
  static constexpr std::string_view kNames[] = {
      "step",   "read and build a batch", "accumulate", "sums over ranks",
      "update", "wait for results",       "log"};
  return kNames[size_t(work)];
}

/// RankGroup::sum takes no negative numbers, and a card's clock may be a little
/// behind the host's when the profile begins.
static constexpr int64_t kEarliest = -(int64_t{1} << 50);

static constexpr size_t kCommandNumbers = 5;
static constexpr size_t kSpanNumbers = 4;

static std::vector<int64_t> numbersOf(const RankProfile &profile) {
  std::vector<int64_t> numbers;
  for (const TimedCommand &c : profile.commands)
    numbers.insert(numbers.end(), {c.command, c.entry, int64_t(c.labelledRows),
                                   c.start - kEarliest, c.end - kEarliest});
  for (const HostSpan &s : profile.host)
    numbers.insert(numbers.end(), {int64_t(s.work), s.step,
                                   s.start - kEarliest, s.end - kEarliest});
  return numbers;
}

static RankProfile profileOf(std::span<const int64_t> numbers,
                             size_t commands) {
  RankProfile profile;
  for (; commands > 0; --commands) {
    profile.commands.push_back({uint32_t(numbers[0]), uint32_t(numbers[1]),
                                uint64_t(numbers[2]), numbers[3] + kEarliest,
                                numbers[4] + kEarliest});
    numbers = numbers.subspan(kCommandNumbers);
  }
  for (; !numbers.empty(); numbers = numbers.subspan(kSpanNumbers))
    profile.host.push_back(
        {HostWork(numbers[0]), numbers[1], numbers[2] + kEarliest,
         numbers[3] + kEarliest});
  return profile;
}

/// Every other rank adds zeros.
StatusOr<RankProfile> shareProfile(RankGroup &group, int rank,
                                   const RankProfile &own) {
  if (group.size() == 1)
    return own;
  const bool isMine = group.rank() == rank;
  int64_t counts[2] = {};
  if (isMine) {
    counts[0] = static_cast<int64_t>(own.commands.size());
    counts[1] = static_cast<int64_t>(own.host.size());
  }
  QLORA_RETURN_IF_ERROR(group.sum(std::span(counts)));
  const auto commands = static_cast<size_t>(counts[0]);
  std::vector<int64_t> numbers(kCommandNumbers * commands +
                               kSpanNumbers * static_cast<size_t>(counts[1]));
  if (isMine)
    numbers = numbersOf(own);
  if (!numbers.empty())
    QLORA_RETURN_IF_ERROR(group.sum(std::span(numbers)));
  return profileOf(numbers, commands);
}

} // namespace qlora
