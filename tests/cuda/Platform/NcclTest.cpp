// SPDX-License-Identifier: MIT

// Tests the NCCL look-alike with ranks as processes.

#include "tests/cuda/Platform/Ranks.h"

#include <gtest/gtest.h>

using namespace qlora;
using namespace qlora::platform;

namespace {

TEST(Nccl, AddsUpDirectlyAndInGraphs) {
  EXPECT_TRUE(onTwoRanks([](RankClient &self) {
    Client &client = self.client;
    if (self.ask() != kNcclSuccess)
      return false;
    client.write(self.data, Values(64, self.rank ? 0.1f : 0.7f));
    if (!self.sum() || client.read(self.data, 64) != Values(64, 0.7f + 0.1f))
      return false;
    client.require(cuStreamBeginCapture_v2(client.stream, 1), "capture");
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    if (!self.sum())
      return false;
    client.require(cuStreamEndCapture(client.stream, &graph), "end");
    client.require(cuGraphInstantiateWithFlags(&exec, graph, 0), "graph");
    for (int i = 0; i < 5; ++i)
      client.require(cuGraphLaunch(exec, client.stream), "launch");
    if (client.read(self.data, 64) != Values(64, (0.7f + 0.1f) * 32))
      return false;
    // Ranks leave only after the graphs are destroyed.
    ncclResult_t state = 0;
    if (ncclCommFinalize(self.group) != kNcclInProgress)
      return false;
    for (int i = 0; i < 100; ++i)
      client.require(ncclCommGetAsyncError(self.group, &state), "ask");
    if (state != kNcclInProgress)
      return false;
    client.require(cuGraphExecDestroy(exec), "destroy");
    client.require(cuGraphDestroy(graph), "destroy");
    return self.ask() == kNcclSuccess && ncclCommDestroy(self.group) == 0;
  }));
}

TEST(Nccl, EveryKindMovesItsPieces) {
  EXPECT_TRUE(onTwoRanks([](RankClient &self) {
    if (self.ask() != kNcclSuccess)
      return false;
    Client &client = self.client;
    const CUdeviceptr source = client.allocate(64);
    auto *to = reinterpret_cast<float *>(self.data);
    auto *from = reinterpret_cast<float *>(source);
    // Rank 0 has 1, 2, 3, ...; rank 1 has 11, 12, 13, ...
    const auto own = [&](int rank, size_t count, size_t first = 0) {
      Values values(count);
      for (size_t i = 0; i < count; ++i)
        values[i] = float(10 * rank + 1 + int(first + i));
      return values;
    };
    client.write(source, own(self.rank, 6));
    const auto isDone = [&](ncclResult_t begun, const Values &expected) {
      return begun == kNcclInProgress && self.ask() == kNcclSuccess &&
             client.read(self.data, expected.size()) == expected;
    };
    const auto both = [](Values first, const Values &second) {
      first.insert(first.end(), second.begin(), second.end());
      return first;
    };
    if (!isDone(ncclAllGather(from, to, 3, kNcclFloat32, self.group,
                              client.stream),
                both(own(0, 3), own(1, 3))) ||
        !isDone(ncclBroadcast(from, to, 5, kNcclFloat32, 1, self.group,
                              client.stream),
                own(1, 5)))
      return false;
    const float at = 3.0f * float(self.rank);
    if (!isDone(ncclReduceScatter(from, to, 3, kNcclFloat32, kNcclSum,
                                  self.group, client.stream),
                {12 + 2 * at, 14 + 2 * at, 16 + 2 * at}))
      return false;
    // Both ranks send their shard to each other, as in an all-to-all.
    if (ncclGroupStart() != kNcclSuccess)
      return false;
    for (int peer : {0, 1})
      if (ncclSend(from + 3 * peer, 3, kNcclFloat32, peer, self.group,
                   client.stream) != kNcclSuccess ||
          ncclRecv(to + 3 * peer, 3, kNcclFloat32, peer, self.group,
                   client.stream) != kNcclSuccess)
        return false;
    const size_t mine = 3 * size_t(self.rank);
    if (!isDone(ncclGroupEnd(), both(own(0, 3, mine), own(1, 3, mine))))
      return false;
    const bool isMoved =
        self.rank == 0
            ? isDone(ncclSend(from, 6, kNcclFloat32, 1, self.group,
                              client.stream),
                     both(own(0, 3), own(1, 3)))
            : isDone(ncclRecv(to, 6, kNcclFloat32, 0, self.group,
                              client.stream),
                     own(0, 6));
    return isMoved && self.leave();
  }));
}

/// Splits four ranks into {3, 1} and {0, 2}, in the order of their keys. Both
/// groups and the parent run concurrently.
TEST(Nccl, SplitsAreGroupsOfTheirOwn) {
  EXPECT_TRUE(onRanks(4, [](RankClient &self) {
    if (self.ask() != kNcclSuccess)
      return false;
    Client &client = self.client;
    ncclConfig_t config;
    config.blocking = 0;
    const int color = self.rank % 2, key = color ? 3 - self.rank : 7;
    ncclComm_t part = self.group;
    if (ncclCommSplit(self.group, color, key, &part, &config) !=
            kNcclSuccess ||
        part != nullptr || self.call() != kNcclInvalidUsage ||
        self.ask() != kNcclSuccess || part == nullptr)
      return false;
    ncclResult_t state = kNcclSuccess;
    Client::require(ncclCommGetAsyncError(part, &state), "ask");
    if (state != kNcclInProgress || self.ask(part) != kNcclSuccess)
      return false;
    const CUdeviceptr source = client.allocate(64);
    client.write(source, {float(self.rank)});
    const auto gather = [&](ncclComm_t group) {
      return ncclAllGather(reinterpret_cast<void *>(source),
                           reinterpret_cast<void *>(self.data), 1, kNcclFloat32,
                           group, client.stream) == kNcclInProgress &&
             self.ask(group) == kNcclSuccess;
    };
    for (int i = 0; i < 3; ++i)
      if (!gather(part) ||
          client.read(self.data, 2) != (color ? Values{3, 1} : Values{0, 2}) ||
          !gather(self.group) ||
          client.read(self.data, 4) != Values{0, 1, 2, 3})
        return false;
    // Split again, into groups of one rank each.
    ncclComm_t own = nullptr;
    if (ncclCommSplit(self.group, self.rank, 0, &own, &config) !=
            kNcclSuccess ||
        self.ask() != kNcclSuccess || self.ask(own) != kNcclSuccess ||
        !gather(own) || client.read(self.data, 1) != Values{float(self.rank)})
      return false;
    return self.leave(own) && self.leave(part) && self.leave();
  }));
}

TEST(Nccl, ASplitWaitsForAllRanks) {
  EXPECT_TRUE(onTwoRanks([](RankClient &self) {
    ncclConfig_t config;
    ncclComm_t part = nullptr;
    if (self.ask() != kNcclSuccess ||
        ncclCommSplit(self.group, 0, 0, &part, &config) !=
            kNcclInvalidArgument) // a blocking configuration
      return false;
    if (self.rank == 1)
      return true;
    config.blocking = 0;
    ncclResult_t state = 0;
    if (ncclCommSplit(self.group, -1, 0, &part, &config) !=
            kNcclInvalidArgument ||
        ncclCommSplit(self.group, 0, 0, &part, &config) != kNcclSuccess ||
        ncclCommGetAsyncError(part, &state) != kNcclInvalidArgument)
      return false;
    for (int i = 0; i < 100; ++i)
      self.client.require(ncclCommGetAsyncError(self.group, &state), "ask");
    return state == kNcclInProgress && part == nullptr &&
           ncclCommAbort(self.group) == kNcclSuccess;
  }));
}

TEST(Nccl, ACallWhileAnotherIsInProgressIsRefused) {
  std::string errors;
  EXPECT_TRUE(onTwoRanks(
      [](RankClient &self) {
        if (self.call() != kNcclInvalidUsage || self.ask() != kNcclSuccess)
          return false;
        return self.call() == kNcclInProgress &&
               self.call() == kNcclInvalidUsage && self.ask() == kNcclSuccess &&
               cuStreamSynchronize(self.client.stream) == 0 && self.leave();
      },
      {}, &errors));
  EXPECT_NE(errors.find("another call is still in progress"), errors.npos);
}

TEST(Nccl, ACallThatNobodyAskedForDoesNothing) {
  EXPECT_TRUE(onTwoRanks([](RankClient &self) {
    if (self.ask() != kNcclSuccess)
      return false;
    self.client.write(self.data, Values(64, 1));
    return self.call() == kNcclInProgress &&
           self.client.read(self.data, 64) == Values(64, 1) &&
           self.ask() == kNcclSuccess &&
           self.client.read(self.data, 64) == Values(64, 2);
  }));
}

TEST(Nccl, RefusesWrongArguments) {
  EXPECT_TRUE(onTwoRanks(
      [](RankClient &self) {
        if (self.ask() != kNcclSuccess)
          return false;
        auto *at = reinterpret_cast<float *>(self.data);
        auto with = [&](const void *from, void *to, CUstream stream) {
          return ncclAllReduce(from, to, 16, kNcclFloat32, kNcclSum,
                               self.group, stream);
        };
        float host[16] = {};
        ncclConfig_t config;
        ncclComm_t none = nullptr;
        auto initialise = [&](int rank) {
          return ncclCommInitRankConfig(&none, 2, ncclUniqueId{}, rank,
                                        &config);
        };
        if (initialise(0) != kNcclInvalidArgument) // a blocking configuration
          return false;
        config.blocking = 0;
        if (initialise(2) != kNcclInvalidArgument ||
            initialise(0) != kNcclSystemError) // an id that no rank created
          return false;
        config.magic = 1;
        return initialise(0) == kNcclInvalidArgument &&
               self.call(0) == kNcclInvalidArgument &&
               self.call(65) == kNcclInvalidArgument &&
               self.call(64, 3) == kNcclInvalidArgument &&
               self.call(64, kNcclFloat32, 2) == kNcclInvalidArgument &&
               with(host, at, nullptr) == kNcclInvalidArgument &&
               with(at, at + 8, nullptr) == kNcclInvalidArgument &&
               with(at, at, reinterpret_cast<CUstream>(host)) ==
                   kNcclInProgress &&
               self.ask() == kNcclUnhandledCudaError &&
               self.call() == kNcclUnhandledCudaError &&
               ncclCommDestroy(nullptr) == kNcclInvalidArgument;
      },
      {}, nullptr));
}

TEST(Nccl, GoesOnWhileTheHostIsElsewhere) {
  int toZero[2];
  ASSERT_EQ(pipe(toZero), 0);
  EXPECT_TRUE(onTwoRanks([&](RankClient &self) {
    if (self.ask() != kNcclSuccess || !self.sum())
      return false;
    // Rank 1 does not wait for its GPU. It waits for rank 0, which waits for
    // its GPU.
    char word = 0;
    if (self.rank == 1)
      return read(toZero[0], &word, 1) == 1;
    return cuStreamSynchronize(self.client.stream) == 0 &&
           write(toZero[1], "x", 1) == 1;
  }));
}

TEST(Nccl, DifferentCountsFail) {
  std::string errors;
  EXPECT_TRUE(onTwoRanks(
      [](RankClient &self) {
        return self.ask() == kNcclSuccess &&
               self.call(self.rank ? 32 : 64) == kNcclInProgress &&
               self.ask() == kNcclSuccess &&
               cuStreamSynchronize(self.client.stream) == kLaunchFailed;
      },
      {}, &errors));
  EXPECT_NE(
      errors.find("rank 1 runs ncclAllReduce of 128 bytes of type 7, rank 0 "
                  "ncclAllReduce of 256 bytes of type 7"),
      errors.npos);
}

TEST(Nccl, TwoRanksDoNotShareAGpu) {
  std::string errors;
  EXPECT_TRUE(onTwoRanks(
      [](RankClient &self) { return self.ask() == kNcclInvalidUsage; }, {},
      &errors, /*haveOneGpu=*/true));
  EXPECT_NE(errors.find("Duplicate GPU detected : rank 0 and rank 1"),
            errors.npos);
}

TEST(Nccl, AnAbortEndsACollectiveThatHangs) {
  EXPECT_TRUE(onTwoRanks(
      [](RankClient &self) {
        const CUevent event = self.client.newEvent();
        if (self.ask() != kNcclSuccess || !self.sum() || !self.sum())
          return false;
        self.client.require(cuEventRecord(event, self.client.stream), "record");
        for (int i = 0; i < 200; ++i)
          if (cuEventQuery(event) != kNotReady)
            return false;
        return ncclCommAbort(self.group) == kNcclSuccess &&
               cuEventSynchronize(event) == 0 &&
               ncclCommAbort(self.group) == kNcclInvalidArgument;
      },
      {{"QLORA_TEST_CUDA_HANG", "2"}}));
}

TEST(Nccl, TellsAnErrorLater) {
  EXPECT_TRUE(onTwoRanks(
      [](RankClient &self) {
        return self.ask() == kNcclSuccess && self.sum() &&
               cuStreamSynchronize(self.client.stream) == 0 &&
               self.ask() == kNcclRemoteError &&
               self.call() == kNcclRemoteError;
      },
      {{"QLORA_TEST_CUDA_ASYNC", "1:6"}}));
}

} // namespace
