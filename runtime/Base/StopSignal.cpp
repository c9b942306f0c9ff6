// SPDX-License-Identifier: MIT

// Implements signal handlers, and the flags that they set.

#include "runtime/Base/StopSignal.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>

namespace qlora {

/// Signals within one second count as one: a terminal signals a launcher and
/// its ranks, and a closed terminal sends several signals.
static constexpr int64_t kOneSignalMs = 1000;

// A lock-free atomic is one of the few globals that a handler may write. Other
// threads also read `received`.
static std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free);
static volatile int64_t firstMs = 0; ///< used only by the handler

/// Times in ms: the last SIGUSR1, and until when requests count as answered.
static std::atomic<int64_t> saveMs = 0;
static std::atomic<int64_t> answeredMs = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

static int64_t clockMs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

static void onSaveSignal(int) { saveMs = clockMs(); }

static void onSignal(int signal) {
  const int64_t nowMs = clockMs();
  if (!received) {
    firstMs = nowMs;
    received = signal == SIGINT ? SIGINT : SIGTERM;
  } else if (nowMs - firstMs >= kOneSignalMs) {
    std::signal(signal, SIG_DFL);
    raise(signal);
  }
}

/// Gives this thread, to which the system delivers signals, a separate stack
/// for handlers. oneDNN's generated kernels keep values below the stack
/// pointer, beyond the ABI's red zone, where a handler would overwrite them.
static void useOwnStack() {
  static const size_t bytes = std::max<size_t>(
      static_cast<size_t>(sysconf(_SC_SIGSTKSZ)), size_t{1} << 16);
  static char *const memory = new char[bytes]; // used until exit
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = bytes;
  sigaltstack(&stack, nullptr);
}

void installStopSignals() {
  useOwnStack();
  struct sigaction action = {};
  action.sa_handler = onSignal;
  // SA_RESTART restarts interrupted system calls.
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  for (int signal : {SIGINT, SIGTERM, SIGHUP})
    sigaddset(&action.sa_mask, signal);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Keep SIGHUP ignored under nohup.
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN)
    sigaction(SIGHUP, &action, nullptr);
  struct sigaction save = {};
  save.sa_handler = onSaveSignal;
  save.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGUSR1, &save, nullptr);
  // If the reader of the output exits, the adapter must still be written.
  std::signal(SIGPIPE, SIG_IGN);
}

bool isSaveAsked() { return saveMs > answeredMs; }

void answerSaveSignal() { answeredMs = clockMs() + kOneSignalMs; }

void ignoreSaveSignal() { std::signal(SIGUSR1, SIG_IGN); }

int stopSignal() { return received; }

} // namespace qlora
