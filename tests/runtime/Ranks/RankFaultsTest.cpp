// SPDX-License-Identifier: MIT

// Two processes, one per rank, connect and run all-reduces. In one of them,
// each socket call fails in turn. That rank continues, or its error names a
// call or a rank. If it fails, the other rank ends immediately.

#include <gtest/gtest.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "runtime/Ranks/RankGroup.h"
#include "runtime/Ranks/Socket.h"
#include "tests/runtime/Faults.h"
#include "tests/runtime/Ranks/TenthLimits.h"

namespace qlora {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// How long a rank waits for a peer that has never connected, or whose
/// connection was lost before it identified itself.
constexpr auto kPatience = 1500ms;
/// Limit for a run without such a wait. The other rank notices at once that the
/// failed rank has closed its connections.
constexpr auto kAtOnce = 1200ms;

size_t openDescriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

Status addOnRanks(RankGroup &group) {
  for (int round = 0; round < 3; ++round) {
    int64_t sum = group.rank() + 1;
    QLORA_RETURN_IF_ERROR(group.sum(std::span(&sum, 1)));
    std::vector<float> data(1000, 1.0f);
    auto *bytes = reinterpret_cast<uint8_t *>(data.data());
    QLORA_RETURN_IF_ERROR(
        group.collectives().run({QLORA_COLLECTIVE_ALL_REDUCE,
                                 QLORA_DTYPE_F32,
                                 0,
                                 {bytes, data.size() * sizeof(float)},
                                 {}}));
    if (sum != 3 || data != std::vector<float>(1000, 2.0f))
      return Status::error(StatusCode::kInternal, "a wrong sum");
  }
  return group.collectives().barrier();
}

/// Joins a job, runs all-reduces and leaves the job, as a session does.
Status playRank(const RankEnvironment &env, FileDescriptor listening) {
  QLORA_ASSIGN_OR_RETURN(RankGroup group,
                         RankGroup::join(env, std::move(listening), kPatience));
  const Status added = addOnRanks(group);
  return added.isOk() ? added : group.end(added);
}

void print(int rank, const std::string &text) {
  fmt::print(stderr, "rank {}: {}\n", rank, text);
}

/// Returns the rank's exit code.
int runRank(const RankEnvironment &env, FileDescriptor listening,
            size_t descriptors) {
  const Status status = playRank(env, std::move(listening));
  if (!status.isOk())
    print(env.rank, status.message());
  if (openDescriptors() != descriptors)
    print(env.rank, "leaves descriptors open");
  return status.isOk() ? 0 : 1;
}

/// Runs rank `failing` here, and the other rank in a child process without
/// faults. Returns bit 0 if `failing` fails, bit 1 if the other rank fails.
int runBoth(int failing) {
  const size_t descriptors = openDescriptors();
  auto listening = listenOn("127.0.0.1", 0);
  const StatusOr<int> port =
      listening.isOk() ? portOf(*listening) : StatusOr<int>(listening.status());
  if (!port.isOk()) {
    print(failing, port.status().message());
    return 1;
  }
  RankEnvironment env;
  env.worldSize = env.localWorldSize = 2;
  env.masterPort = port.value();
  env.secret = "a secret of the job";
  env.limits = kTenthLimits;
  env.limits.heartbeat = {10ms, 1000, 20ms, 100ms};
  const auto run = [&](int rank) {
    env.rank = env.localRank = rank;
    FileDescriptor own = std::move(*listening);
    if (rank != 0)
      own = FileDescriptor();
    return runRank(env, std::move(own), descriptors);
  };
  const pid_t other = fork();
  if (other == 0) {
    spareThisProcess();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(run(1 - failing));
  }
  const int code = run(failing);
  int status = 0;
  waitpid(other, &status, 0);
  return code + (status == 0 ? 0 : 2);
}

/// Expects one line from each rank that failed, with the failed call or a rank.
void expectLines(const FaultyRun &run, const FaultSweep &sweep, int failing) {
  std::vector<std::string> lines;
  std::istringstream text(run.errors);
  for (std::string line; std::getline(text, line);)
    if (!line.starts_with("qlora-run: warning: "))
      lines.push_back(line);
  const std::string where = sweep.call() + "\n" + run.errors;
  const bool failed[] = {(run.exitCode & 1) != 0, (run.exitCode & 2) != 0};
  EXPECT_EQ(lines.size(), size_t{failed[0]} + size_t{failed[1]}) << where;
  for (std::string line : lines) {
    const bool isOwn = line.starts_with(fmt::format("rank {}: ", failing));
    line.erase(0, strlen("rank 0: "));
    const bool namesCall =
        line.find(sweep.name() + ": ") != line.npos ||
        line.starts_with("cannot listen on ") ||
        (sweep.name() == "eventfd" &&
         line.starts_with("cannot create an event descriptor: "));
    EXPECT_TRUE(line.find("rank ") != line.npos || (isOwn && namesCall))
        << where;
  }
}

void sweepSockets(int failing, int error) {
  FaultSweep sweep({.calls = kSockets, .error = error});
  while (sweep.next()) {
    const auto start = Clock::now();
    const FaultyRun run = sweep.runChild([&] { return runBoth(failing); });
    const auto took = Clock::now() - start;
    const std::string where = sweep.call() + "\n" + run.errors;
    ASSERT_LE(run.exitCode, sweep.hasFailed() ? 3 : 0) << where;
    expectLines(run, sweep, failing);
    const bool waits =
        run.errors.find("was not reached") != std::string::npos ||
        run.errors.find("has not connected") != std::string::npos;
    EXPECT_LT(took, waits ? kPatience + kAtOnce : kAtOnce) << where;
  }
  EXPECT_GE(sweep.failures(), 60);
}

TEST(RankFaults, OfRankZeroEndBothRanks) { sweepSockets(0, ECONNRESET); }
TEST(RankFaults, OfAnotherRankEndBothRanks) { sweepSockets(1, ENOBUFS); }

} // namespace
} // namespace qlora
