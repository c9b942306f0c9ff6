// SPDX-License-Identifier: MIT

// What a compile is doing, for people who wait for it:
//
//   qloracc: compiling kernels for sm_90: 3 of 8 files, 0:00:14
//
// A quick compile shows nothing. A terminal sees one line that changes every
// second and is gone at the end; a log gets a line every ten seconds.

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
    static Pace ofTerminal() {
      return {true, Milliseconds(2000), Milliseconds(1000)};
    }
    static Pace ofLog() {
      return {false, Milliseconds(10000), Milliseconds(10000)};
    }
  };
  using Write = std::function<void(std::string_view)>;

  /// Writes to standard error, at the pace of what that is.
  CompileProgress();
  /// `write` is called from a thread of its own, one call at a time.
  CompileProgress(Write write, Pace pace);
  ~CompileProgress() { end(); }
  CompileProgress(const CompileProgress &) = delete;
  CompileProgress &operator=(const CompileProgress &) = delete;

  /// Begins another part of the work: "planning". Any thread, as the next.
  void begin(std::string what);
  /// `done` of `total` files of that part; a total of 0: there are none.
  void count(size_t done, size_t total);
  /// Takes the line off a terminal, before the last word of the compile.
  void end();

private:
  void show(std::stop_token stop);
  std::string text() const; ///< under the mutex

  const Write write;
  const Pace pace;
  const std::chrono::steady_clock::time_point start;
  std::mutex mutex;
  std::condition_variable_any wakes;
  std::string what = "reading the model"; ///< under the mutex, as the next
  size_t done = 0, total = 0;
  std::jthread thread; ///< last: it uses all of the above
};

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_COMPILEPROGRESS_H
