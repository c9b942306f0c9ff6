// SPDX-License-Identifier: MIT

// Errors, delays and hangs of NCCL, and time limits of all waits, with a fake
// function table.

#include "runtime/Device/Cuda/NcclCollectives.h"

#include "tests/runtime/Device/FakeNccl.h"
#include "tests/runtime/Faults.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

using namespace std::chrono_literals;
using fake::group;

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

std::string noNccl(const char *file) {
  const Status status = Nccl::openFile(file).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  return status.message();
}

TEST(NcclApi, SaysWhatIsMissing) {
  EXPECT_HAS(noNccl("libqlora-no-nccl.so.2"),
             "more than one GPU needs NCCL, but libqlora-no-nccl.so.2 cannot "
             "be opened (libqlora-no-nccl.so.2");
  EXPECT_HAS(noNccl("libqlora-no-nccl.so.2"), "install libnccl2 2.14 or later");
  EXPECT_HAS(noNccl(QLORA_BARE_DRIVER), "has no ncclGetVersion; update it");
}

TEST(NcclApi, NamesErrors) {
  const Nccl &nccl = fake::newNccl();
  EXPECT_TRUE(nccl.check(0, "x").isOk());
  EXPECT_TRUE(nccl.check(kNcclInProgress, "x").isOk());
  const Status status = nccl.check(2, "ncclAllReduce");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(),
            "ncclAllReduce: ncclSystemError (2): as the test wants it");
  EXPECT_EQ(nccl.check(6, "x").code(), StatusCode::kAborted);
}

class NcclCollectivesTest : public testing::Test {
protected:
  NcclCollectivesTest() : nccl(fake::newNccl()) { fake::newDriver(); }

  Status connect() {
    QLORA_ASSIGN_OR_RETURN(
        gpus,
        NcclCollectives::connect(nccl, {&host}, GroupSizes().on(host.count)));
    return Status::ok();
  }
  Status sum() {
    CollectiveCall call;
    call.to = {reinterpret_cast<uint8_t *>(values.data()),
               values.size() * sizeof(float)};
    return gpus->run(call, QLORA_GROUP_DP, nullptr);
  }
  bool isAborted() {
    gpus.reset();
    return group.isAborted;
  }

  const Nccl &nccl;
  fake::TwoRanks host;
  std::unique_ptr<NcclCollectives> gpus;
  std::vector<float> values = {1, 2, 3};
};

TEST_F(NcclCollectivesTest, AsksUntilACallHasTakenEffect) {
  ASSERT_TRUE(connect().isOk());
  EXPECT_EQ(group.config.blocking, 0);
  EXPECT_EQ(group.config.size, 24u);
  EXPECT_EQ(group.calls["commGetAsyncError"], 3);
  ASSERT_TRUE(sum().isOk());
  EXPECT_EQ(group.calls["commGetAsyncError"], 6);
  EXPECT_EQ(values, (std::vector<float>{2, 4, 6}));
  EXPECT_TRUE(gpus->look(1s).isOk());
  EXPECT_TRUE(gpus->confirm().isOk());
  EXPECT_FALSE(isAborted());
  EXPECT_EQ(group.calls["commFinalize"], 1);
  EXPECT_EQ(group.calls["commDestroy"], 1);
}

TEST_F(NcclCollectivesTest, EveryKindIsACallOfNccl) {
  ASSERT_TRUE(connect().isOk());
  std::vector<uint16_t> from(10), to(10);
  const auto run = [&](qlora_collective kind, size_t sent, size_t received,
                       int peer) {
    CollectiveCall call = {kind, QLORA_DTYPE_BF16, peer, {}, {}};
    call.to = {reinterpret_cast<uint8_t *>(to.data()), 2 * received};
    call.from = {reinterpret_cast<uint8_t *>(from.data()), 2 * sent};
    const Status status = gpus->run(call, QLORA_GROUP_DP, nullptr);
    EXPECT_TRUE(status.isOk()) << status.message();
  };
  run(QLORA_COLLECTIVE_ALL_GATHER, 5, 10, 0);
  run(QLORA_COLLECTIVE_REDUCE_SCATTER, 10, 5, 0);
  run(QLORA_COLLECTIVE_BROADCAST, 0, 7, 1);
  run(QLORA_COLLECTIVE_ALL_TO_ALL, 10, 10, 0);
  run(QLORA_COLLECTIVE_SEND, 3, 0, 1);
  run(QLORA_COLLECTIVE_RECV, 0, 3, 1);
  // Stages form a ring. This rank is the first of two stages.
  run(QLORA_COLLECTIVE_SEND, 3, 0, 2);
  run(QLORA_COLLECTIVE_RECV, 0, 3, -1);
  EXPECT_EQ(group.said,
            (std::vector<std::string>{
                "allGather 5 of 9 (0)", "reduceScatter 5 of 9 (0)",
                "broadcast 7 of 9 (1)", "send 5 of 9 (0)", "recv 5 of 9 (0)",
                "send 5 of 9 (1)", "recv 5 of 9 (1)", "send 3 of 9 (1)",
                "recv 3 of 9 (1)", "send 3 of 9 (0)", "recv 3 of 9 (1)"}));
  const std::vector<const void *> places = {from.data(),     to.data(),
                                            from.data() + 5, to.data() + 5,
                                            from.data(),     to.data(),
                                            from.data(),     to.data()};
  EXPECT_EQ(group.places, places);
}

TEST_F(NcclCollectivesTest, PeersAreCountedFromTheRank) {
  ASSERT_TRUE(connect().isOk());
  host.own = 1;
  CollectiveCall call = {QLORA_COLLECTIVE_SEND, QLORA_DTYPE_F32, -1, {}, {}};
  call.from = {reinterpret_cast<uint8_t *>(values.data()), sizeof(float)};
  EXPECT_TRUE(gpus->run(call, QLORA_GROUP_DP, nullptr).isOk());
  call.kind = QLORA_COLLECTIVE_RECV;
  call.to = {reinterpret_cast<uint8_t *>(values.data()), sizeof(float)};
  EXPECT_TRUE(gpus->run(call, QLORA_GROUP_DP, nullptr).isOk());
  EXPECT_EQ(group.said, (std::vector<std::string>{"send 1 of 7 (0)",
                                                  "recv 1 of 7 (0)"}));
}

/// This rank is rank 3 of 4. Ranks 2 and 3 shard the frozen weights.
class NcclShardsTest : public NcclCollectivesTest {
protected:
  NcclShardsTest() {
    host.own = 3;
    host.count = 4;
    shards.own = 1;
  }
  Status connect() {
    QLORA_ASSIGN_OR_RETURN(gpus,
                           NcclCollectives::connect(nccl, {&host, &shards},
                                                    kShards.on(host.count)));
    return Status::ok();
  }
  Status gather(qlora_group over) {
    CollectiveCall call = {
        QLORA_COLLECTIVE_ALL_GATHER, QLORA_DTYPE_U8, 0, {}, {}};
    call.to = {reinterpret_cast<uint8_t *>(values.data()), 6};
    call.from = {reinterpret_cast<uint8_t *>(values.data()), 3};
    return gpus->run(call, over, nullptr);
  }

  fake::TwoRanks shards;
  static constexpr GroupSizes kShards = GroupSizes({.fsdp = 2});
};

TEST_F(NcclShardsTest, HaveACommunicatorOfTheirOwn) {
  ASSERT_TRUE(connect().isOk());
  EXPECT_EQ(group.config.blocking, 0);
  ASSERT_TRUE(gather(QLORA_GROUP_FSDP).isOk());
  ASSERT_TRUE(sum().isOk());
  EXPECT_EQ(group.said,
            (std::vector<std::string>{"split 2 1", "allGather 3 of 1 (0)"}));
  gpus.reset();
  EXPECT_EQ(group.used, (std::vector{fake::part(), fake::communicator(),
                                     fake::part(), fake::communicator()}));
  EXPECT_EQ(group.calls["commFinalize"], 2);
  EXPECT_FALSE(group.isAborted);
}

/// This rank is rank 7 of 8. Ranks 5 and 7 shard the frozen weights; ranks 6
/// and 7 are tensor-parallel.
TEST_F(NcclShardsTest, AreBesideThoseThatShareProducts) {
  host.own = 7;
  host.count = 8;
  fake::TwoRanks tensor;
  tensor.own = 1;
  gpus = NcclCollectives::connect(nccl, {&host, &shards, &tensor},
                                  GroupSizes({.fsdp = 2, .tp = 2}).on(8))
             .value();
  ASSERT_TRUE(gather(QLORA_GROUP_TP).isOk());
  ASSERT_TRUE(sum().isOk());
  EXPECT_EQ(group.said,
            (std::vector<std::string>{"split 5 1", "split 6 1",
                                      "allGather 3 of 1 (0)"}));
  EXPECT_TRUE(gpus->look(1s).isOk());
  gpus.reset();
  EXPECT_EQ(group.calls["commFinalize"], 3);
  EXPECT_EQ(group.used.back(), fake::communicator());
  // Connects without fsdp, with all ranks in one tensor-parallel group.
  fake::newNccl();
  SingleRank alone;
  gpus = NcclCollectives::connect(nccl, {&host, &alone, &tensor},
                                  GroupSizes({.tp = 2}).on(8))
             .value();
  gpus = NcclCollectives::connect(nccl, {&host, &alone, &host},
                                  GroupSizes({.tp = 8}).on(8))
             .value();
  EXPECT_EQ(group.said, std::vector<std::string>{"split 6 1"});
}

/// This rank is rank 3 of 4. Ranks 2 and 3 are context-parallel, and all ranks
/// shard the frozen weights.
TEST_F(NcclShardsTest, AreThoseThatShareLinesToo) {
  fake::TwoRanks lines;
  lines.own = 1;
  SingleRank alone;
  gpus = NcclCollectives::connect(nccl, {&host, &host, &alone, &lines},
                                  GroupSizes({.fsdp = 4, .cp = 2}).on(4))
             .value();
  ASSERT_TRUE(gather(QLORA_GROUP_CP).isOk());
  EXPECT_EQ(group.said,
            (std::vector<std::string>{"split 2 1", "allGather 3 of 1 (0)"}));
}

TEST_F(NcclShardsTest, AreAllRanksWhereTheseAreAsMany) {
  host.count = 2;
  host.own = 1;
  ASSERT_TRUE(connect().isOk());
  ASSERT_TRUE(gather(QLORA_GROUP_FSDP).isOk());
  EXPECT_EQ(group.calls["commSplit"], 0);
  EXPECT_EQ(group.used, std::vector{fake::communicator()});
}

/// A split returns ncclSuccess immediately. The parent communicator is queried
/// until the handle appears, and then the new communicator until it is ready.
TEST_F(NcclShardsTest, WaitForTheHandle) {
  ASSERT_TRUE(connect().isOk());
  ASSERT_TRUE(gather(QLORA_GROUP_FSDP).isOk());
  EXPECT_EQ(group.used, std::vector{fake::part()});
  EXPECT_FALSE(group.isAborted);
}

TEST_F(NcclShardsTest, WaitForTheHandleWithinTheTimeout) {
  host.limit = 100ms;
  for (const bool isHanging : {true, false}) {
    fake::newNccl();
    group.hanging = isHanging ? "commSplit" : "";
    group.isHandleLost = !isHanging;
    EXPECT_HAS(connect().message(),
               "ncclCommSplit has not ended after 0.1 s: another rank hangs");
    group.isAborted.wait(false);
    EXPECT_EQ(group.partAborts, 0);
  }
}

TEST_F(NcclShardsTest, StopWaitingForTheHandleOfARankThatIsGone) {
  static fake::TwoRanks *ranks;
  ranks = &host;
  Nccl withoutOthers = nccl;
  withoutOthers.commSplit = [](ncclComm_t of, int color, int key,
                               ncclComm_t *to, ncclConfig_t *config) {
    ranks->isAlone = true;
    return fake::commSplit(of, color, key, to, config);
  };
  group.isHandleLost = true;
  EXPECT_EQ(NcclCollectives::connect(withoutOthers, {&host, &shards},
                                     kShards.on(host.count))
                .status()
                .message(),
            "rank 1 is gone");
  group.isAborted.wait(false);
}

TEST_F(NcclShardsTest, TellAnErrorThatComesLater) {
  ASSERT_TRUE(connect().isOk());
  group.asyncError = 3;
  EXPECT_HAS(gpus->confirm().message(), "ncclInternalError");
  EXPECT_HAS(gather(QLORA_GROUP_FSDP).message(), "was aborted earlier");
}

TEST_F(NcclShardsTest, NeedALibraryThatSplits) {
  Nccl old = nccl;
  old.commSplit = nullptr;
  EXPECT_EQ(NcclCollectives::connect(old, {&host, &shards}, kShards.on(4))
                .status()
                .message(),
            "groups of 2 of 4 GPUs (sharded) need NCCL 2.18 or later; "
            "update it, or start 2 GPUs");
  EXPECT_EQ(NcclCollectives::connect(old, {&host, nullptr, &shards},
                                     GroupSizes({.tp = 2}).on(4))
                .status()
                .message(),
            "groups of 2 of 4 GPUs (tensor parallel) need NCCL 2.18 or later; "
            "update it, or start 2 GPUs");
}

/// This rank is rank 0 of 4. Its groups are all ranks and a pair of ranks.
class NcclFailuresTest : public NcclShardsTest {
protected:
  NcclFailuresTest() { host.own = shards.own = 0; }

  Status runAll() {
    QLORA_RETURN_IF_ERROR(connect());
    for (int kind = 0; kind < QLORA_COLLECTIVE_COUNT; ++kind) {
      CollectiveCall call = {
          qlora_collective(kind), QLORA_DTYPE_F32, 1, {}, {}};
      call.to = {reinterpret_cast<uint8_t *>(values.data()), 8};
      call.from = call.to;
      QLORA_RETURN_IF_ERROR(gpus->run(call, QLORA_GROUP_FSDP, nullptr));
    }
    QLORA_RETURN_IF_ERROR(sum());
    QLORA_RETURN_IF_ERROR(gpus->look(1s));
    return gpus->confirm();
  }
};

TEST_F(NcclFailuresTest, EveryFailingCallIsNamedAndAborts) {
  FaultSweep sweep({.calls = kNccl, .error = 2});
  while (sweep.next()) {
    fake::newNccl();
    group.mostQuestions = 0;
    Status status;
    bool isLost = false;
    sweep.run([&] {
      status = runAll();
      isLost = status.isOk() && sweep.hasFailed();
      gpus.reset();
    });
    const std::string &name = sweep.name();
    const std::string where = sweep.call() + ": " + status.message();
    EXPECT_FALSE(isLost) << where;
    const bool isConnected =
        name != "ncclGetUniqueId" && name != "ncclCommInitRankConfig";
    EXPECT_EQ(group.aborts, sweep.hasFailed() && isConnected) << where;
    if (status.isOk())
      continue;
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << where;
    EXPECT_HAS(status.message(),
               name.starts_with("ncclGroup") ? "ncclSend and ncclRecv" : name);
    EXPECT_HAS(status.message(), ": ncclSystemError (2): as the test wants it");
  }
  EXPECT_GE(sweep.failures(), 30);
}

TEST_F(NcclCollectivesTest, AHangingCallEndsAtTheTimeout) {
  host.limit = 100ms;
  for (const char *member : {"commInitRankConfig", "allReduce"}) {
    fake::newNccl();
    group.hanging = member;
    Status status = connect();
    if (status.isOk())
      status = sum();
    EXPECT_HAS(status.message(), "has not ended after 0.1 s: another rank "
                                 "hangs, or needs a longer --ddp-timeout");
    gpus.reset();
    EXPECT_TRUE(group.isAborted);
  }
}

TEST_F(NcclCollectivesTest, WaitsForTheGpuWithinItsBound) {
  ASSERT_TRUE(connect().isOk());
  EXPECT_TRUE(gpus->look(59s).isOk());
  const Status status = gpus->look(61s);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_HAS(status.message(),
             "a collective on the GPU has not ended after 60 s");
  EXPECT_TRUE(isAborted());
}

TEST_F(NcclCollectivesTest, TellsAnErrorThatComesLater) {
  for (const bool hasEnded : {true, false}) {
    fake::newNccl();
    ASSERT_TRUE(connect().isOk());
    group.asyncError = 3;
    const Status status = hasEnded ? gpus->confirm() : gpus->look(1ms);
    EXPECT_EQ(status.message(),
              "a collective on the GPU: ncclInternalError (3): "
              "as the test wants it");
    const int calls = group.calls["commGetAsyncError"];
    EXPECT_HAS(gpus->look(1ms).message(), "was aborted earlier");
    EXPECT_HAS(sum().message(), "was aborted earlier");
    EXPECT_EQ(group.calls["commGetAsyncError"], calls);
    EXPECT_TRUE(isAborted());
  }
}

TEST_F(NcclCollectivesTest, BlamesARankThatIsGone) {
  ASSERT_TRUE(connect().isOk());
  const Status own = Status::error(StatusCode::kInternal, "the GPU failed");
  EXPECT_EQ(gpus->judge(own).message(), "the GPU failed");
  host.isAlone = true;
  const Status status = gpus->judge(own);
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(status.message(), "rank 1 is gone (the GPU failed)");
  EXPECT_TRUE(isAborted());
}

TEST_F(NcclCollectivesTest, NoticesARankThatIsGoneWhileItWaits) {
  ASSERT_TRUE(connect().isOk());
  host.isAlone = true;
  std::this_thread::sleep_for(60ms);
  EXPECT_EQ(gpus->look(1ms).message(), "rank 1 is gone");
  EXPECT_TRUE(isAborted());
}

TEST_F(NcclCollectivesTest, DoesNotWaitForAnAbortThatHangs) {
  for (const char *member : {"allReduce", "commFinalize"}) {
    fake::newNccl();
    group.isAbortHeld = true;
    group.failing = member;
    ASSERT_TRUE(connect().isOk());
    EXPECT_EQ(sum().isOk(), member == std::string("commFinalize"));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(isAborted());
    const auto waited = std::chrono::steady_clock::now() - start;
    EXPECT_GT(waited, 900ms);
    EXPECT_LT(waited, 10s);
    group.isAbortHeld = false;
    group.isAbortHeld.notify_all();
  }
}

} // namespace
} // namespace qlora
