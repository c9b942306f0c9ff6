// SPDX-License-Identifier: MIT

// NCCL's rules for graphs: all ranks or none capture a call, and ranks launch
// the graphs of the same capture together. Each violation is an error that
// names the actions of two ranks. No violation hangs.

#include "tests/cuda/Platform/Ranks.h"

#include <gtest/gtest.h>

using namespace qlora;
using namespace qlora::platform;

namespace {

/// Captures one all-reduce; returns the graph, or null if the call failed.
CUgraphExec capture(RankClient &self) {
  const CUstream stream = self.client.stream;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  Client::require(cuStreamBeginCapture_v2(stream, 1), "capture");
  const bool isFine = self.sum();
  Client::require(cuStreamEndCapture(stream, &graph), "end");
  if (isFine)
    Client::require(cuGraphInstantiateWithFlags(&exec, graph, 0), "graph");
  return exec;
}

CUresult launch(RankClient &self, CUgraphExec exec) {
  Client::require(cuGraphLaunch(exec, self.client.stream), "launch");
  return cuStreamSynchronize(self.client.stream);
}

/// Runs `body` on both ranks and returns the platform's explanations. The body
/// checks the results of its calls.
std::string failures(const std::function<bool(RankClient &)> &body) {
  std::string errors;
  EXPECT_TRUE(onTwoRanks(
      [&](RankClient &self) {
        return self.ask() == kNcclSuccess && body(self);
      },
      {}, &errors));
  return errors;
}

#define EXPECT_SAYS(text, part)                                                \
  do {                                                                         \
    const std::string whole = (text);                                          \
    EXPECT_NE(whole.find(part), whole.npos) << "in: " << whole;                \
  } while (false)

TEST(NcclCapture, MeetsTheOtherRanks) {
  int toOne[2];
  ASSERT_EQ(pipe(toOne), 0);
  EXPECT_TRUE(onTwoRanks([&](RankClient &self) {
    if (self.ask() != kNcclSuccess)
      return false;
    char word = 0;
    // Rank 1 captures only after rank 0 has polled for it in vain.
    if (self.rank == 1)
      return read(toOne[0], &word, 1) == 1 && capture(self) != nullptr;
    Client::require(cuStreamBeginCapture_v2(self.client.stream, 1), "capture");
    if (self.call() != kNcclInProgress)
      return false;
    ncclResult_t state = kNcclInProgress;
    for (int i = 0; i < 100 && state == kNcclInProgress; ++i)
      Client::require(ncclCommGetAsyncError(self.group, &state), "ask");
    return state == kNcclInProgress && write(toOne[1], "x", 1) == 1 &&
           self.ask() == kNcclSuccess;
  }));
}

TEST(NcclCapture, OfOneRankAloneIsRefused) {
  EXPECT_SAYS(failures([](RankClient &self) {
                return self.rank == 0 ? capture(self) == nullptr : self.sum();
              }),
              "rank 0 captures its call 1, rank 1 runs its own directly");
}

TEST(NcclCapture, WhileAnotherRankReplaysIsRefused) {
  EXPECT_SAYS(failures([](RankClient &self) {
                const CUgraphExec first = capture(self);
                if (self.rank == 0)
                  return first && capture(self) == nullptr;
                // The launch never ends, but its operands are published.
                const CUevent event = self.client.newEvent();
                Client::require(cuGraphLaunch(first, self.client.stream), "1");
                Client::require(cuEventRecord(event, self.client.stream), "2");
                for (int i = 0; i < 100; ++i)
                  if (cuEventQuery(event) != kNotReady)
                    return false;
                return true;
              }),
              "rank 0 captures its call 2, rank 1 replays what it captured in "
              "its call 1");
}

TEST(NcclCapture, IsReplayedByAllRanks) {
  EXPECT_SAYS(failures([](RankClient &self) {
                const CUgraphExec both[] = {capture(self), capture(self)};
                return launch(self, both[0]) == 0 &&
                       launch(self, both[1]) == 0 &&
                       launch(self, both[self.rank]) == kLaunchFailed;
              }),
              "collective 3: rank 1 replays what it captured in its call 2, "
              "rank 0 replays what it captured in its call 1");
}

TEST(NcclCapture, IsNotReplayedBesideADirectCall) {
  EXPECT_SAYS(failures([](RankClient &self) {
                const CUgraphExec exec = capture(self);
                if (self.rank == 0)
                  return launch(self, exec) == kLaunchFailed;
                return self.sum() &&
                       cuStreamSynchronize(self.client.stream) == kLaunchFailed;
              }),
              "collective 1: rank 0 replays what it captured in its call 1, "
              "rank 1 runs its call 2");
}

/// While a rank waits in a capture, its GPU continues to work: rank 1 reads the
/// sum before it captures.
TEST(NcclCapture, LeavesTheGpuAtWork) {
  EXPECT_TRUE(onTwoRanks([](RankClient &self) {
    if (self.ask() != kNcclSuccess || !self.sum())
      return false;
    if (self.rank == 1 && cuStreamSynchronize(self.client.stream))
      return false;
    return capture(self) != nullptr;
  }));
}

} // namespace
