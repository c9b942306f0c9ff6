// SPDX-License-Identifier: MIT

// Runs operations that are ready, ordered by priority.

#include "tests/cuda/Driver/Schedule.h"

#include "tests/cuda/Driver/Api.h"
#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <csignal>
#include <set>
#include <thread>

namespace qlora::platform {

namespace {
struct Earlier {
  bool operator()(const OperationRef &a, const OperationRef &b) const {
    return a->priority != b->priority ? a->priority < b->priority
                                      : a->number < b->number;
  }
};

struct Schedule {
  std::set<OperationRef, Earlier> ready;
  uint64_t added = 0;
  int sticky = 0;
  std::chrono::nanoseconds clock = {}; ///< the clock of events
  size_t shared = 0; ///< operations that wait for another process
};

/// Runs operations on a thread while the host does not call the driver, until
/// the process ends.
class Progress {
public:
  Progress();
  ~Progress() {
    isEnding = true;
    thread.join();
  }

private:
  void loop();

  std::atomic<bool> isEnding = false;
  std::thread thread;
};
} // namespace

static constexpr auto kPause = std::chrono::microseconds(100);
static constexpr auto kQuiet = std::chrono::milliseconds(5);
static constexpr int kTurn = 64;
static constexpr auto kOperationTime = std::chrono::microseconds(1);

static Schedule &all() {
  static Schedule schedule;
  return schedule;
}

Progress::Progress() {
  // Block all signals, so that the program's own threads handle them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread = std::thread([this] { loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Progress::loop() {
  for (; !isEnding; std::this_thread::sleep_for(kQuiet)) {
    const std::lock_guard lock(platformMutex());
    const auto quiet = std::chrono::steady_clock::now() - lastCall();
    for (int i = 0; i < kTurn && all().shared && quiet > kQuiet; ++i)
      if (!runOne())
        break;
  }
}

void spendTime(std::chrono::nanoseconds time) {
  const std::lock_guard lock(platformMutex());
  all().clock += time;
}

int stickyCode() { return all().sticky; }
void setStickyCode(int code) { all().sticky = code; }

OperationRef schedule(std::string what, uint64_t priority,
                      std::span<const OperationRef> dependencies, Work work,
                      MayRun mayRun) {
  auto operation = std::make_shared<Operation>();
  operation->what = std::move(what);
  operation->work = std::move(work);
  if (mayRun) {
    static Progress progress;
    operation->mayRun = std::move(mayRun);
    ++all().shared;
  }
  operation->priority = priority;
  operation->number = ++all().added;
  for (const OperationRef &dependency : dependencies) {
    if (!dependency || dependency->isDone)
      continue;
    dependency->followers.push_back(operation);
    ++operation->unmet;
  }
  if (operation->unmet == 0)
    all().ready.insert(operation);
  return operation;
}

bool runOne() {
  Schedule &schedule = all();
  const auto found = std::find_if(
      schedule.ready.begin(), schedule.ready.end(),
      [&](const OperationRef &ready) {
        return schedule.sticky || !ready->mayRun || ready->mayRun();
      });
  if (found == schedule.ready.end())
    return false;
  const OperationRef operation = *found;
  schedule.ready.erase(found);
  if (schedule.sticky == 0) {
    int code = countAndInject("run");
    if (code)
      explain(fmt::format("{}: made to fail with {}", operation->what, code));
    else
      code = operation->work();
    schedule.sticky = code;
  }
  operation->work = nullptr;
  schedule.shared -= bool(operation->mayRun);
  operation->mayRun = nullptr;
  operation->isDone = true;
  schedule.clock += kOperationTime;
  operation->doneAt = schedule.clock;
  for (const OperationRef &follower : operation->followers)
    if (--follower->unmet == 0)
      schedule.ready.insert(follower);
  operation->followers.clear();
  return true;
}

bool hasWork() { return !all().ready.empty(); }

void runSome() {
  if (nextRandom() % 4 == 0)
    runOne();
}

/// Runs an operation. Waits briefly if all ready operations wait for another
/// process.
static void runOrWait() {
  assert(!all().ready.empty() && "operations depend on earlier ones only");
  if (!runOne())
    std::this_thread::sleep_for(kPause);
}

void runUntil(const OperationRef &operation) {
  while (operation && !operation->isDone)
    runOrWait();
}

void runAll() {
  while (!all().ready.empty())
    runOrWait();
}

} // namespace qlora::platform
