// SPDX-License-Identifier: MIT

// Latency and bandwidth of a link, fitted to times of collectives, and measured
// with collectives.

#include "runtime/Predict/LinkRates.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/ABI/collective.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"

namespace qlora {
namespace {

/// Returns `use` with its time on a link with 20 us per message and 2 GB/s.
LinkSample sampleOf(const LinkUse &use) {
  return {use, use.messages * 20e-6 + use.bytes / 2e9};
}

TEST(LinkRates, FindWhatGaveTheTimes) {
  std::vector<LinkSample> samples;
  for (double bytes : {4096.0, 65536.0, 8e6})
    samples.push_back(
        sampleOf(windowUse(QLORA_COLLECTIVE_ALL_REDUCE, bytes, 2)));
  samples.push_back(sampleOf(ringUse(QLORA_COLLECTIVE_ALL_TO_ALL, 1e6, 4)));
  const LinkRate link = fitLink(samples);
  EXPECT_NEAR(link.messageMicroseconds, 20, 1e-9);
  EXPECT_NEAR(link.gbps, 2, 1e-9);
}

/// The fit minimizes relative errors, so a delayed short call has no more
/// weight than a long call.
TEST(LinkRates, WeighErrorsByTheTimes) {
  const LinkRate link =
      fitLink(std::vector<LinkSample>{{{1, 1}, 2e-5}, // 20 us without bytes
                                      {{1, 1}, 4e-5},
                                      {{1, 1e9}, 1}}); // 1 s
  // The fit gives the harmonic mean of 20 and 40: 2 / (1 / 20 + 1 / 40).
  EXPECT_NEAR(link.messageMicroseconds, 26.67, 0.01);
  EXPECT_NEAR(link.gbps, 1, 1e-4);
}

/// If times fall as messages or bytes increase, the measurement is noise. The
/// fit still gives messages and bytes a positive cost.
TEST(LinkRates, GiveNothingForFree) {
  // A message costs a tenth of its upper bound, which is 1 ms / 100 messages.
  LinkRate link =
      fitLink(std::vector<LinkSample>{{{100, 1e6}, 1e-3}, {{1, 2e6}, 4e-3}});
  EXPECT_NEAR(link.messageMicroseconds, 1, 1e-9);
  EXPECT_GT(link.gbps, 0.1);
  EXPECT_LT(link.gbps, 10);
  link = fitLink(std::vector<LinkSample>{
      {{1, 1e6}, 1e-3}, {{9, 1e3}, 1e-2}, {{1, 4e6}, 1e-3}});
  // A byte costs a tenth of its upper bound, which is 1 ms / 4 MB (4 GB/s).
  EXPECT_NEAR(link.gbps, 40, 1e-9);
  EXPECT_GT(link.messageMicroseconds, 100);
}

TEST(LinkRates, RanksOfAMachineHaveAWindowAndSockets) {
  runJob(2, GroupSizes({.tp = 2}), [](RankGroup &group) {
    const StatusOr<RankLinks> links = measureLinks(group);
    ASSERT_TRUE(links.isOk()) << links.status().message();
    EXPECT_TRUE(links->window && links->sockets);
    EXPECT_FALSE(links->network);
    // All ranks get the slowest rank's times.
    const double own[] = {links->window->gbps, links->sockets->gbps,
                          links->window->messageMicroseconds};
    const auto all =
        group.collectives().allGatherValues(std::span<const double>(own));
    EXPECT_EQ(all.value()[0], all.value()[1]);
  });
}

TEST(LinkRates, RanksAloneOnTheirMachinesHaveANetwork) {
  runJob(2, GroupSizes{}, [](RankGroup &group) {
    const StatusOr<RankLinks> links = measureLinks(group);
    ASSERT_TRUE(links.isOk()) << links.status().message();
    EXPECT_FALSE(links->window || links->sockets);
    EXPECT_TRUE(links->network.has_value());
    EXPECT_EQ(links->ranksPerNode, 1);
  });
}

} // namespace
} // namespace qlora
