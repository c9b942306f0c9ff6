// SPDX-License-Identifier: MIT

// Shows what a compile is doing:
//
//   qloracc: compiling kernels for sm_90: 3 of 8 files, 0:00:14
//
// A short compile shows nothing. On a terminal, one line is updated every
// second and removed at the end. A log gets a line every ten seconds.

#ifndef QLORA_COMPILER_SUPPORT_COMPILEPROGRESS_H
#define QLORA_COMPILER_SUPPORT_COMPILEPROGRESS_H

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace qlora {

class CompileProgress {
public:
  using Milliseconds = std::chrono::milliseconds;
  struct Pace {
    bool isTerminal = false;
    Milliseconds first{0}; ///< from the start to the first line
    Milliseconds next{0};  ///< from line to line
  };
  using Write = std::function<void(std::string_view)>;

  /// Writes to standard error, at the pace for a terminal or a log.
  CompileProgress();
  /// Calls `write` from its own thread, one call at a time.
  CompileProgress(Write write, Pace pace);
  ~CompileProgress() { end(); }
  CompileProgress(const CompileProgress &) = delete;
  CompileProgress &operator=(const CompileProgress &) = delete;

  /// Starts another stage of the work, such as "planning". begin() and count()
  /// may be called from any thread.
  void begin(std::string what);
  /// Reports that `done` of the stage's `total` files are done. If `total` is
  /// 0, the line shows no file count.
  void count(size_t done, size_t total);
  /// Removes the line from a terminal, before the compile's final message.
  void end();

private:
  void show(std::stop_token stop);
  std::string text() const; ///< the caller holds `mutex`

  const Write write;
  const Pace pace;
  const std::chrono::steady_clock::time_point start;
  std::mutex mutex;
  std::condition_variable_any wakes;
  std::string what = "reading the model"; ///< guarded by `mutex`
  size_t done = 0, total = 0;             ///< guarded by `mutex`
  std::jthread thread; ///< last member, because it uses the others
};

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_COMPILEPROGRESS_H
