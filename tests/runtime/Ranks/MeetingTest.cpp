// SPDX-License-Identifier: MIT

// Jobs start even if unrelated clients hold connections to their ports, if
// there are many ranks, or if file descriptors are few. If they cannot start,
// they report why.

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "tests/runtime/Ranks/Served.h"

using namespace qlora;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

#ifdef __SANITIZE_THREAD__
static constexpr int kManyRanks = 40; // each needs shadow memory
#else
static constexpr int kManyRanks = 200;
#endif

namespace {
/// Unrelated connections to a port, of four kinds: silent ones, another
/// protocol, half a greeting, and a complete greeting with another secret.
class Strangers {
public:
  explicit Strangers(int port, int count = 64) {
    RendezvousGreeting greeting;
    greeting.rank = 1;
    const char web[sizeof greeting] = "GET / HTTP/1.1\r\nHost: node\r\n\r\n";
    for (int i = 0; i < count; ++i) {
      auto socket = connectTo("127.0.0.1", port, 5s);
      EXPECT_TRUE(socket.isOk()) << socket.status().message();
      const std::pair<const void *, size_t> said[] = {
          {web, 0},
          {web, sizeof web},
          {&greeting, 16},
          {&greeting, sizeof greeting}};
      const auto &[data, bytes] = said[i % 4];
      (void)sendAll(*socket, data, bytes); // the server may have closed it
      sockets.push_back(std::move(*socket));
    }
  }
  /// Returns the first connection, which is silent.
  const FileDescriptor &silent() const { return sockets.front(); }

private:
  std::vector<FileDescriptor> sockets;
};

/// Results of ranks that ran in separate processes.
struct Ended {
  std::map<int, std::string> texts; ///< by rank, if it wrote one
  std::vector<double> cpuSeconds;   ///< by rank
};

/// Runs `body` on each of `size` ranks, in separate processes.
class RankProcesses {
public:
  using Body = std::function<std::string(const RankEnvironment &)>;

  RankProcesses() {
    EXPECT_EQ(pipe(ends), 0);
    socket = std::move(listenOn("127.0.0.1", 0)).value();
    env.masterPort = portOf(socket).value();
    env.secret = "a secret of the job";
    env.limits = kTenthLimits;
  }

  void start(int size, const Body &body) {
    env.worldSize = env.localWorldSize = size;
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        env.rank = env.localRank = rank;
        if (rank > 0)
          socket = FileDescriptor();
        const std::string line = std::to_string(rank) + " " + body(env) + "\n";
        _exit(write(ends[1], line.data(), line.size()) !=
              static_cast<ssize_t>(line.size()));
      }
      pids.push_back(pid);
    }
    close(ends[1]);
    socket = FileDescriptor();
  }

  Ended wait() {
    std::string all;
    char buffer[4096];
    ssize_t bytes;
    while ((bytes = read(ends[0], buffer, sizeof buffer)) > 0)
      all.append(buffer, static_cast<size_t>(bytes));
    close(ends[0]);
    Ended ended;
    for (const pid_t pid : pids) {
      rusage used = {};
      wait4(pid, nullptr, 0, &used);
      ended.cpuSeconds.push_back(
          static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
          static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) /
              1e6);
    }
    for (size_t at = 0, end; (end = all.find('\n', at)) != all.npos;
         at = end + 1) {
      const size_t space = all.find(' ', at);
      ended.texts[std::stoi(all.substr(at))] =
          all.substr(space + 1, end - space - 1);
    }
    return ended;
  }

  /// Joins the job; returns "met", or the error.
  std::string join(const RankEnvironment &own,
                   std::chrono::milliseconds timeout) {
    auto group = RankGroup::join(
        own, own.rank == 0 ? std::move(socket) : FileDescriptor(), timeout);
    return group.isOk() ? "met" : group.status().message();
  }

  RankEnvironment env;

private:
  FileDescriptor socket;
  int ends[2];
  std::vector<pid_t> pids;
};
} // namespace

static size_t threadsOfThisProcess() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                    std::filesystem::directory_iterator()));
}

/// One thread serves all connections, and ends although some are still open.
TEST(Meeting, StrangersAtTheRendezvousCostNothing) {
  auto served = std::make_unique<Served>(2);
  const size_t before = threadsOfThisProcess();
  const auto start = Clock::now();
  const Strangers strangers(served->port);
  RendezvousHello hello;
  EXPECT_TRUE(receiveAll(strangers.silent(), &hello, sizeof hello).isOk());
  std::this_thread::sleep_for(100ms); // time to accept all connections
  EXPECT_EQ(threadsOfThisProcess(), before);
  std::thread second([&] {
    EXPECT_EQ(served->exchange(1, 2, std::string("b")).value(), "a");
  });
  EXPECT_EQ(served->exchange(0, 2, std::string("a")).value(), "b");
  second.join();
  served.reset();
  EXPECT_LT(Clock::now() - start, 3s);
}

/// A rank finds the previous rank among unrelated clients that connected first.
TEST(Meeting, StrangersInTheRingCostNothing) {
  Served served(2);
  const FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  Rendezvous second = served.connectAs(1, 2);
  std::thread other([&] {
    const std::string place = std::string(32, 'x') +
                              std::to_string(portOf(listening).value()) +
                              " 127.0.0.1";
    const std::string found = second.exchange(place, 5s).value();
    const int port = std::stoi(found.substr(32));
    const Strangers strangers(port);
    Digest drawn;
    std::copy_n(found.begin(), drawn.size(), drawn.begin());
    std::vector<FileDescriptor> lanes;
    for (const char *role : {"ring 1", "heartbeat 1"}) {
      lanes.push_back(std::move(connectTo("127.0.0.1", port, 1s)).value());
      const Digest proof = proofOf("job", role, drawn);
      EXPECT_TRUE(sendAll(lanes.back(), proof.data(), proof.size()).isOk());
    }
    EXPECT_TRUE(second.exchange(std::string(), 20s).isOk());
  });
  Rendezvous meeting = served.connectAs(0, 2);
  const auto start = Clock::now();
  const Status status = Ring::connect(meeting, "job", 20s, 1s).status();
  EXPECT_TRUE(status.isOk()) << status.message();
  EXPECT_LT(Clock::now() - start, 3s);
  other.join();
}

/// A rank that is connected to both neighbours waits for the other ranks.
/// Silence is no error before all ranks are connected.
TEST(Meeting, SilenceCountsOnceAllHaveMet) {
  Served served(2);
  const FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  Rendezvous second = served.connectAs(1, 2);
  std::vector<FileDescriptor> lanes;
  std::thread other([&] {
    const std::string place = std::string(32, 'x') +
                              std::to_string(portOf(listening).value()) +
                              " 127.0.0.1";
    const std::string found = second.exchange(place, 5s).value();
    Digest drawn;
    std::copy_n(found.begin(), drawn.size(), drawn.begin());
    for (const char *role : {"ring 1", "heartbeat 1"}) {
      lanes.push_back(
          std::move(connectTo("127.0.0.1", std::stoi(found.substr(32)), 1s))
              .value());
      const Digest proof = proofOf("job", role, drawn);
      EXPECT_TRUE(sendAll(lanes.back(), proof.data(), proof.size()).isOk());
    }
    std::this_thread::sleep_for(500ms);
    EXPECT_TRUE(second.exchange(std::string(), 20s).isOk());
  });
  Rendezvous meeting = served.connectAs(0, 2);
  RankTimeLimits limits = kTenthLimits;
  limits.heartbeat = {20ms, 10, 40ms, 100ms};
  auto ring = Ring::connect(meeting, "job", 20s, 1s, limits);
  ASSERT_TRUE(ring.isOk()) << ring.status().message();
  EXPECT_FALSE((*ring)->heartbeat()->hasCause());
  // After the start, silence is an error.
  const auto start = Clock::now();
  while (!(*ring)->heartbeat()->hasCause() && Clock::now() - start < 5s)
    std::this_thread::sleep_for(10ms);
  EXPECT_TRUE((*ring)->heartbeat()->hasCause());
  other.join();
}

/// Rank 0 needs a descriptor per rank, more than its soft limit permits.
TEST(Meeting, ManyRanksMeet) {
  RankProcesses ranks;
  ranks.env.patience = 60s;
  ranks.start(kManyRanks, [&](const RankEnvironment &own) {
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = kManyRanks / 3;
    setrlimit(RLIMIT_NOFILE, &limit);
    return ranks.join(own, 60s);
  });
  const Ended ended = ranks.wait();
  ASSERT_EQ(ended.texts.size(), kManyRanks);
  for (const auto &[rank, text] : ended.texts)
    EXPECT_EQ(text, "met") << rank;
}

static void limitDescriptors(rlim_t limit) {
  const rlimit both = {limit, limit};
  setrlimit(RLIMIT_NOFILE, &both);
}

/// If rank 0 can never hold all connections, every rank reports it at the
/// deadline, and rank 0 uses no CPU meanwhile.
TEST(Meeting, AllAreToldOfTooFewDescriptors) {
  RankProcesses ranks;
  ranks.env.patience = 2s;
  const auto start = Clock::now();
  ranks.start(16, [&](const RankEnvironment &own) {
    if (own.rank == 0)
      limitDescriptors(20);
    return ranks.join(own, 60s);
  });
  const Ended ended = ranks.wait();
  EXPECT_LT(Clock::now() - start, 9s);
  EXPECT_LT(ended.cpuSeconds[0], 1.0);
  ASSERT_EQ(ended.texts.size(), 16u);
  const std::string line = ended.texts.at(0);
  EXPECT_HAS(line, fmt::format("rank 0 at 127.0.0.1:{} cannot accept rank ",
                               ranks.env.masterPort));
  EXPECT_HAS(line, "this process has no file descriptor left, its limit is 20. "
                   "Fix: raise the hard limit of open files on this host "
                   "(ulimit -Hn)");
  for (const auto &[rank, text] : ended.texts)
    EXPECT_EQ(text, line) << rank;
}

/// Unrelated clients that hold all descriptors are disconnected in favour of
/// ranks.
TEST(Meeting, RanksComeAfterStrangersWithAllDescriptors) {
  RankProcesses ranks;
  ranks.env.patience = 20s;
  // Rank 1 can connect only when rank 0 has closed the unrelated connections,
  // after a second (ConnectionLoop.h). A wrong secret shortens the wait for
  // rank 1 to this limit, which must be longer than a second.
  ranks.env.limits.stranger = 5s;
  const Strangers strangers(ranks.env.masterPort); // queued by the system
  const auto start = Clock::now();
  ranks.start(2, [&](const RankEnvironment &own) {
    // The process inherited up to 64 descriptors, and may open 40 more.
    if (own.rank == 0)
      limitDescriptors(64 + 40);
    return ranks.join(own, 60s);
  });
  const Ended ended = ranks.wait();
  EXPECT_LT(Clock::now() - start, 8s);
  EXPECT_LT(ended.cpuSeconds[0], 1.0);
  ASSERT_EQ(ended.texts.size(), 2u);
  EXPECT_EQ(ended.texts.at(0), "met");
  EXPECT_EQ(ended.texts.at(1), "met");
}

/// If rank 0 is stopped while its port still accepts connections, the error
/// does not blame another program.
TEST(Meeting, AStoppedRankZeroIsNotAnotherProgram) {
  const FileDescriptor listening = std::move(listenOn("127.0.0.1", 0)).value();
  const int port = portOf(listening).value();
  RankTimeLimits limits = kTenthLimits;
  limits.longer = 100ms;
  EXPECT_EQ(
      Rendezvous::connect("127.0.0.1", port, "job", selfOf(1, 2), 200ms, limits)
          .status()
          .message(),
      fmt::format("127.0.0.1:{} accepts connections, but did not answer in "
                  "0.3 s. Fix: check whether rank 0 is stopped there, or "
                  "another program uses the port",
                  port));
}
