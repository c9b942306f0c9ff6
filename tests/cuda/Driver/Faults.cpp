// SPDX-License-Identifier: MIT

// Signal handlers use a separate stack, because the kernel's may overflow.

#include "tests/cuda/Driver/Faults.h"

#include "tests/cuda/Driver/Codes.h"

#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdint>

namespace qlora::platform {

static constexpr std::array<int, 4> kSignals = {SIGSEGV, SIGBUS, SIGILL,
                                                SIGFPE};
static thread_local sigjmp_buf *active = nullptr;
static thread_local Fault fault;
static std::array<struct sigaction, kSignals.size()> previous;

/// Returns the kind of sanitizer check that failed. Clang's trap is a ud1
/// instruction, one byte of which is the kind.
static int trapOf(const void *instruction) {
  const auto *bytes = static_cast<const uint8_t *>(instruction);
  const bool isUd1 = bytes[0] == 0x67 && bytes[1] == 0x0f && bytes[2] == 0xb9 &&
                     bytes[3] == 0x40;
  return isUd1 ? bytes[4] : -1;
}

static void onSignal(int signal, siginfo_t *info, void *) {
  if (!active) {
    for (size_t i = 0; i < kSignals.size(); ++i)
      if (kSignals[i] == signal)
        sigaction(signal, &previous[i], nullptr);
    return; // the instruction faults again, for the earlier handler
  }
  fault = {signal, info->si_addr,
           signal == SIGILL ? trapOf(info->si_addr) : -1};
  siglongjmp(*active, 1);
}

static void installHandlers() {
  static bool isInstalled = false;
  if (isInstalled)
    return;
  isInstalled = true;
  struct sigaction action = {};
  action.sa_sigaction = onSignal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (size_t i = 0; i < kSignals.size(); ++i)
    sigaction(kSignals[i], &action, &previous[i]);
}

std::optional<Fault> catchFaults(const std::function<void()> &body) {
  installHandlers();
  static thread_local std::array<char, 64 << 10> stack;
  stack_t own = {};
  stack_t before = {};
  own.ss_sp = stack.data();
  own.ss_size = stack.size();
  sigaltstack(&own, &before);
  sigjmp_buf buffer;
  active = &buffer;
  const bool hasFaulted = sigsetjmp(buffer, 1) != 0;
  if (!hasFaulted)
    body();
  active = nullptr;
  sigaltstack(&before, nullptr);
  if (hasFaulted)
    return fault;
  return std::nullopt;
}

int codeOf(const Fault &fault) {
  constexpr int kTypeMismatch = 22; // a misaligned or null pointer
  if (fault.trap == kTypeMismatch)
    return kMisalignedAddress;
  if (fault.signal == SIGSEGV || fault.signal == SIGBUS || fault.trap >= 0)
    return kIllegalAddress;
  return kLaunchFailed;
}

} // namespace qlora::platform
