// SPDX-License-Identifier: MIT

// Captures as libraries see them; what the card does while the host is busy.

#include "tests/cuda/Driver/Hook.h"

#include "tests/cuda/Driver/Api.h"
#include "tests/cuda/Driver/Objects.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <set>
#include <thread>

namespace qlora::platform {

/// One call in so many is late.
static constexpr uint64_t kCallsPerDelay = 8;
/// Operations that the card runs meanwhile, or while a library is asked.
static constexpr uint64_t kMostPerDelay = 64;

bool isCapturing(CUstream stream) {
  const std::lock_guard lock(platformMutex());
  CUstream_st *const target = currentContext() ? streamOf(stream) : nullptr;
  return target && target->capture;
}

bool goOn() {
  const std::lock_guard lock(platformMutex());
  for (uint64_t i = 0; i < kMostPerDelay && runOne(); ++i) {
  }
  return hasWork();
}

bool mayUse(CUstream stream, const std::string &kernel) {
  const std::lock_guard lock(platformMutex());
  static std::set<std::string> loaded;
  if (settings().loadsEagerly || loaded.contains(kernel))
    return true;
  if (isCapturing(stream)) {
    explain(fmt::format("{} is first used inside of a capture, which does not "
                        "allow it to be loaded",
                        kernel));
    spoilCaptures();
    return false;
  }
  loaded.insert(kernel);
  return true;
}

/// Its own sequence: the order of work stays that of the other seed.
static uint64_t nextDelay() {
  static uint64_t state = settings().delaySeed;
  return mix(state);
}

void delayHost() {
  if (settings().longestDelay == 0)
    return;
  std::unique_lock lock(platformMutex());
  if (nextDelay() % kCallsPerDelay)
    return;
  const std::chrono::microseconds delay(nextDelay() % settings().longestDelay);
  uint64_t operations = nextDelay() % kMostPerDelay;
  countEvent("delays of the host");
  lock.unlock();
  std::this_thread::sleep_for(delay);
  lock.lock();
  while (operations-- > 0 && runOne()) {
  }
}

} // namespace qlora::platform
