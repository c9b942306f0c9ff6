// SPDX-License-Identifier: MIT

// Signal handlers.

#include "runtime/Session/StopSignal.h"

#include <csignal>

namespace qlora {

// A handler can reach nothing else.
static volatile std::sig_atomic_t received = 0;

static void onSignal(int signal) {
  received = signal;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

void installStopSignals() {
  struct sigaction action = {};
  action.sa_handler = onSignal;
  // System calls in flight, of Gloo too, go on.
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stopSignal() { return received; }

} // namespace qlora
