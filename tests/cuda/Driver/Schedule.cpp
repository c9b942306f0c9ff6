// SPDX-License-Identifier: MIT

// The ready operations, ordered by priority.

#include "tests/cuda/Driver/Schedule.h"

#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <cassert>
#include <set>

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
};
} // namespace

static Schedule &all() {
  static Schedule schedule;
  return schedule;
}

int stickyCode() { return all().sticky; }
void setStickyCode(int code) { all().sticky = code; }

OperationRef schedule(std::string what, uint64_t priority,
                      std::span<const OperationRef> dependencies, Work work) {
  auto operation = std::make_shared<Operation>();
  operation->what = std::move(what);
  operation->work = std::move(work);
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
  if (schedule.ready.empty())
    return false;
  const OperationRef operation = *schedule.ready.begin();
  schedule.ready.erase(schedule.ready.begin());
  if (schedule.sticky == 0) {
    int code = countAndInject("run");
    if (code)
      explain(fmt::format("{}: made to fail with {}", operation->what, code));
    else
      code = operation->work();
    schedule.sticky = code;
  }
  operation->work = nullptr;
  operation->isDone = true;
  operation->doneAt = std::chrono::steady_clock::now();
  for (const OperationRef &follower : operation->followers)
    if (--follower->unmet == 0)
      schedule.ready.insert(follower);
  operation->followers.clear();
  return true;
}

void runSome() {
  if (nextRandom() % 4 == 0)
    runOne();
}

void runUntil(const OperationRef &operation) {
  while (operation && !operation->isDone) {
    const bool hasRun = runOne();
    assert(hasRun && "operations depend on earlier ones only");
    (void)hasRun;
  }
}

void runAll() {
  while (runOne()) {
  }
}

} // namespace qlora::platform
