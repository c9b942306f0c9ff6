// SPDX-License-Identifier: MIT

// Ranks as threads of one process.

#ifndef QLORA_TESTS_RUNTIME_RANKS_THREADEDRANKS_H
#define QLORA_TESTS_RUNTIME_RANKS_THREADEDRANKS_H

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "runtime/Ranks/RankGroup.h"
#include "runtime/Ranks/RingCollectives.h"

namespace qlora {

/// Runs `body` as each of `size` ranks, which have met.
inline void runRanks(int size,
                     const std::function<void(RingCollectives &)> &body,
                     std::chrono::milliseconds timeout =
                         std::chrono::seconds(20)) {
  constexpr auto kPatience = std::chrono::seconds(20);
  FileDescriptor socket = std::move(listenOn("127.0.0.1", 0)).value();
  const int port = portOf(socket).value();
  auto server = RendezvousServer::start(std::move(socket), "s", size).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto meeting = Rendezvous::connect("127.0.0.1", port, "s", kPatience);
      ASSERT_TRUE(meeting.isOk()) << meeting.status().message();
      auto ring = Ring::connect(*meeting, "s", rank, size, kPatience, timeout);
      ASSERT_TRUE(ring.isOk()) << ring.status().message();
      RingCollectives group(std::move(*ring));
      body(group);
    });
  for (std::thread &thread : threads)
    thread.join();
}

/// Runs `body` as each of `size` ranks of a job, whose groups FSDP have `shards`.
inline void runJob(int size, const std::function<void(RankGroup &)> &body,
                   int shards = 1) {
  FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  const int port = portOf(listening).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      RankEnvironment env;
      env.rank = rank;
      env.worldSize = size;
      env.masterPort = port;
      env.secret = "s";
      auto group = RankGroup::join(
          env, rank == 0 ? std::move(listening) : FileDescriptor(),
          std::chrono::seconds(20), shards);
      ASSERT_TRUE(group.isOk()) << group.status().message();
      body(*group);
    });
  for (std::thread &thread : threads)
    thread.join();
}

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_RANKS_THREADEDRANKS_H
