// SPDX-License-Identifier: MIT

// Capture state for libraries, and progress of the GPU while the host is busy.

#include "tests/cuda/Driver/Hook.h"

#include "tests/cuda/Driver/Api.h"
#include "tests/cuda/Driver/Objects.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <set>
#include <thread>

namespace qlora::platform {

/// On average, one call in this many is delayed.
static constexpr uint64_t kCallsPerDelay = 8;
/// Maximum operations that the GPU runs during a delay, or per library query.
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

/// Returns the next delay's random value. The sequence is separate from
/// nextRandom(), so delays do not change the order of work.
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
