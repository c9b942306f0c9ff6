// SPDX-License-Identifier: MIT

// Runs a thread that sleeps between updates of the progress line.

#include "compiler/Support/CompileProgress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/Base/Amounts.h"

namespace qlora {

/// Returns to the start of a terminal line and clears it.
static constexpr std::string_view kClear = "\r\033[K";

static void writeErrors(std::string_view text) {
  fmt::print(stderr, "{}", text);
  std::fflush(stderr);
}

CompileProgress::CompileProgress()
    : CompileProgress(writeErrors,
                      isatty(STDERR_FILENO)
                          ? Pace{true, Milliseconds(2000), Milliseconds(1000)}
                          : Pace{false, Milliseconds(10000),
                                 Milliseconds(10000)}) {}

CompileProgress::CompileProgress(Write write, Pace pace)
    : write(std::move(write)), pace(pace),
      start(std::chrono::steady_clock::now()),
      thread([this](std::stop_token stop) { show(stop); }) {}

void CompileProgress::end() {
  if (!thread.joinable())
    return;
  thread.request_stop();
  thread.join();
}

void CompileProgress::begin(std::string part) {
  const std::scoped_lock lock(mutex);
  what = std::move(part);
  done = total = 0;
}

void CompileProgress::count(size_t files, size_t ofFiles) {
  const std::scoped_lock lock(mutex);
  done = files;
  total = ofFiles;
}

std::string CompileProgress::text() const {
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  std::string files;
  if (total > 0)
    files = fmt::format(": {} of {}", done, formatCounted(total, "file"));
  return fmt::format("qloracc: {}{}, {}", what, files,
                     formatDuration(seconds.count()));
}

void CompileProgress::show(std::stop_token stop) {
  std::unique_lock lock(mutex);
  bool isShown = false;
  auto next = start + pace.first;
  const auto never = [] { return false; };
  while (!wakes.wait_until(lock, stop, next, never) && !stop.stop_requested()) {
    // Leave the cursor at the start, so that a message overwrites the line.
    write(pace.isTerminal ? fmt::format("{}{}\r", kClear, text())
                          : text() + "\n");
    isShown = true;
    next += pace.next;
  }
  if (isShown && pace.isTerminal)
    write(kClear);
}

} // namespace qlora
