// SPDX-License-Identifier: MIT

// What handlers write, and who reads it.

#include "runtime/Base/StopSignal.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <initializer_list>

namespace qlora {

/// Signals within one second are one: a terminal's reaches a launcher and its
/// ranks alike, and a closed terminal sends several.
static constexpr int64_t kOneSignalMs = 1000;

// A handler can reach nothing else; other threads read it too.
static std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free);
static volatile int64_t firstMs = 0; ///< used by the handler alone

/// When the last SIGUSR1 came, and until when one is answered.
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

/// A stack for handlers, of this thread, which is the one that the system hands
/// a process' signals to. Kernels that oneDNN generates keep values below the
/// stack pointer, beyond what the ABI leaves alone there: a handler on the same
/// stack would write over them.
static void useOwnStack() {
  static const size_t bytes = std::max<size_t>(
      static_cast<size_t>(sysconf(_SC_SIGSTKSZ)), size_t{1} << 16);
  static char *const memory = new char[bytes]; // signals come to the very end
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = bytes;
  sigaltstack(&stack, nullptr);
}

void installStopSignals() {
  useOwnStack();
  struct sigaction action = {};
  action.sa_handler = onSignal;
  // System calls in flight go on.
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  for (int signal : {SIGINT, SIGTERM, SIGHUP})
    sigaddset(&action.sa_mask, signal);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // nohup has it ignored, and so it stays.
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN)
    sigaction(SIGHUP, &action, nullptr);
  struct sigaction save = {};
  save.sa_handler = onSaveSignal;
  save.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGUSR1, &save, nullptr);
  // Who reads the lines may go; the adapter is still to be written.
  std::signal(SIGPIPE, SIG_IGN);
}

bool isSaveAsked() { return saveMs > answeredMs; }

void answerSaveSignal() { answeredMs = clockMs() + kOneSignalMs; }

void ignoreSaveSignal() { std::signal(SIGUSR1, SIG_IGN); }

int stopSignal() { return received; }

} // namespace qlora
