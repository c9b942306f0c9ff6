// SPDX-License-Identifier: MIT

// Ranks as threads of one process.

#ifndef QLORA_TESTS_RUNTIME_RANKS_THREADEDRANKS_H
#define QLORA_TESTS_RUNTIME_RANKS_THREADEDRANKS_H

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "runtime/Ranks/RankGroup.h"
#include "runtime/Ranks/RendezvousServer.h"
#include "runtime/Ranks/RingCollectives.h"
#include "runtime/Ranks/Socket.h"
#include "tests/runtime/Ranks/TenthLimits.h"

namespace qlora {

inline RendezvousServer::Terms termsOf(int ranks, std::string secret = "s") {
  RendezvousServer::Terms terms;
  terms.secret = std::move(secret);
  terms.ranks = ranks;
  terms.version = "1.0";
  terms.place = "host:1";
  terms.patience = std::chrono::seconds(20);
  terms.limits = kTenthLimits;
  return terms;
}

inline Rendezvous::Self selfOf(int rank, int ranks) {
  return {rank, ranks, "node" + std::to_string(rank), "1.0"};
}

/// Runs `body` on each of `size` ranks in threads, after their rendezvous.
inline void runRanks(int size,
                     const std::function<void(RingCollectives &)> &body,
                     std::chrono::milliseconds timeout =
                         std::chrono::seconds(20)) {
  constexpr auto kPatience = std::chrono::seconds(20);
  FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
  const int port = portOf(socket).value();
  auto server =
      RendezvousServer::start(std::move(socket), termsOf(size)).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto meeting = Rendezvous::connect(
          "127.0.0.1", port, "s", selfOf(rank, size), kPatience, kTenthLimits);
      ASSERT_TRUE(meeting.isOk()) << meeting.status().message();
      auto ring =
          Ring::connect(*meeting, "s", kPatience, timeout, kTenthLimits);
      ASSERT_TRUE(ring.isOk()) << ring.status().message();
      RingCollectives group(std::move(*ring));
      body(group);
    });
  for (std::thread &thread : threads)
    thread.join();
}

/// Runs `body` on each of `size` ranks of a job in threads.
inline void runJob(int size, const GroupSizes &mesh,
                   const std::function<void(RankGroup &)> &body) {
  FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
  RankEnvironment env;
  env.worldSize = env.localWorldSize = size;
  env.masterPort = portOf(socket).value();
  env.secret = "s";
  env.limits = kTenthLimits;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      RankEnvironment own = env;
      own.rank = own.localRank = rank;
      auto group = RankGroup::join(
          own, rank == 0 ? std::move(socket) : FileDescriptor(),
          std::chrono::seconds(20), mesh);
      ASSERT_TRUE(group.isOk()) << group.status().message();
      body(*group);
    });
  for (std::thread &thread : threads)
    thread.join();
}
/// Runs a job in which groups of `shards` ranks shard a base or optimizer
/// states.
inline void runJob(int size, int shards,
                   const std::function<void(RankGroup &)> &body) {
  runJob(size, GroupSizes({.fsdp = uint32_t(shards)}), body);
}

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_RANKS_THREADEDRANKS_H
