// SPDX-License-Identifier: MIT

// Ranks that work, fail, are killed, hang and are stopped. RankHelper.cpp plays
// them.

#include "runtime/Ranks/Supervisor.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/Ranks/Socket.h"
#include "tests/runtime/Faults.h"

using namespace qlora;
using namespace std::chrono_literals;

static std::string tempFile(const char *name) {
  return testing::TempDir() + name + std::to_string(getpid());
}

static LaunchResult launch(const std::string &scene, int ranks,
                           const std::string &file = "-") {
  return launchRanks({QLORA_RANK_HELPER,
                      {"helper", scene, file},
                      ranks,
                      /*grace=*/200ms}); // a tenth of the default
}

static std::string contents(const std::string &path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Waits until the file contains a process id; returns the id.
static pid_t waitForPid(const std::string &path) {
  for (int i = 0; i < 1000; ++i) {
    std::ifstream file(path);
    pid_t pid = 0;
    if (file >> pid)
      return pid;
    std::this_thread::sleep_for(20ms);
  }
  return -1;
}

static bool isRunning(pid_t pid) {
  std::string stat = contents("/proc/" + std::to_string(pid) + "/stat");
  size_t end = stat.rfind(')');
  return end != stat.npos && stat.size() > end + 2 && stat[end + 2] != 'Z';
}

static bool endsSoon(pid_t pid) {
  for (int i = 0; i < 1000 && isRunning(pid); ++i)
    std::this_thread::sleep_for(20ms);
  return !isRunning(pid);
}

TEST(Supervisor, RanksMeetAddAndShareMemory) {
  std::string file = tempFile("sum");
  LaunchResult result = launch("sum", 3, file);
  EXPECT_EQ(result.exitCode, 0) << result.error.message();
  EXPECT_EQ(contents(file), "6 3298534883328 3 11 127.0.0.1");
}

TEST(Supervisor, TheCauseIsShownNotItsConsequences) {
  auto start = std::chrono::steady_clock::now();
  LaunchResult result = launch("fail", 3);
  EXPECT_EQ(result.exitCode, 1);
  EXPECT_EQ(result.error.message(), "rank 1: the weights are missing");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 8s);
}

TEST(Supervisor, AKilledRankIsNamed) {
  LaunchResult result = launch("kill", 3);
  EXPECT_NE(result.exitCode, 0);
  EXPECT_EQ(result.error.message(), "rank 1: was killed by signal 9 (Killed); "
                                    "possibly out of memory");
}

TEST(Supervisor, ASilentExitIsAnError) {
  LaunchResult result = launch("exit", 2);
  EXPECT_NE(result.exitCode, 0);
  EXPECT_EQ(result.error.message(), "rank 1: ended with exit code 3");
}

TEST(Supervisor, HangingRanksAreEnded) {
  auto start = std::chrono::steady_clock::now();
  LaunchResult result = launch("hang", 3);
  EXPECT_EQ(result.error.message(), "rank 1: only this rank ends by itself");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 8s);
}

TEST(Supervisor, AMissingExecutableIsAnError) {
  LaunchResult result = launchRanks({"/nonexistent", {"x"}, 2});
  EXPECT_NE(result.exitCode, 0);
  EXPECT_NE(result.error.message().find("cannot execute /nonexistent"),
            std::string::npos);
}

/// If a rank cannot be started, the launcher ends the earlier ranks and waits
/// for them. It must not reap its other children. A rank that was not started
/// has the process id -1, with which waitpid() would reap any child.
TEST(Supervisor, ARankThatCannotBeStartedEndsTheOthers) {
  const auto body = [] {
    const pid_t other = _Fork(); // not counted as a fault
    if (other == 0)
      _exit(42);
    siginfo_t ended;
    waitid(P_PID, static_cast<id_t>(other), &ended, WEXITED | WNOWAIT);
    const LaunchResult result = launch("hang", 3);
    fmt::print(stderr, "{}", result.error.message());
    int status = 0;
    const bool isLeft = waitpid(other, &status, 0) == other;
    const bool isAlone = waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
    return isLeft && isAlone && WEXITSTATUS(status) == 42 ? result.exitCode
                                                          : 98;
  };
  for (const int error : {EMFILE, EAGAIN}) {
    FaultSweep sweep({.calls = kStarts, .error = error});
    while (sweep.next()) {
      const FaultyRun run = sweep.runChild(body);
      EXPECT_EQ(run.exitCode, 1) << sweep.call();
      EXPECT_EQ(run.errors, sweep.hasFailed()
                                ? fmt::format("cannot start the ranks: {}: {}",
                                              sweep.name(),
                                              socketErrorText(error))
                                : "rank 1: only this rank ends by itself");
    }
    EXPECT_EQ(sweep.failures(), 6); // a socketpair and a fork for each rank
  }
}

/// Runs the helper's scene "wait" in a launcher that is a child of the test.
static pid_t launcherProcess(const std::string &file) {
  pid_t launcher = fork();
  if (launcher == 0)
    _exit(launch("wait", 2, file).exitCode);
  return launcher;
}

TEST(Supervisor, AFirstSignalReachesEveryRankOnce) {
  for (int signal : {SIGINT, SIGTERM}) {
    std::string file = tempFile("signal") + std::to_string(signal);
    pid_t launcher = launcherProcess(file);
    waitForPid(file + "0");
    waitForPid(file + "1");
    kill(launcher, signal);
    int status = 0;
    waitpid(launcher, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
  }
}

TEST(Supervisor, RanksDieWithTheirLauncher) {
  std::string file = tempFile("parent");
  pid_t launcher = launcherProcess(file);
  pid_t first = waitForPid(file + "0"), second = waitForPid(file + "1");
  EXPECT_TRUE(isRunning(first));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(endsSoon(first));
  EXPECT_TRUE(endsSoon(second));
}
