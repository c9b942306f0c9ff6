// SPDX-License-Identifier: MIT

// Progress messages of a compilation, at intervals of milliseconds.

#include "compiler/Support/CompileProgress.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace qlora {
namespace {

using namespace std::chrono_literals;

/// Collects messages, and waits until there are `count` of them.
class Written {
public:
  CompileProgress::Write write() {
    return [this](std::string_view text) {
      const std::scoped_lock lock(mutex);
      texts.emplace_back(text);
      came.notify_all();
    };
  }
  std::vector<std::string> wait(size_t count) {
    std::unique_lock lock(mutex);
    came.wait_for(lock, 60s, [&] { return texts.size() >= count; });
    return texts;
  }

  /// Waits for two more messages; returns the last one.
  std::string next() { return wait(wait(0).size() + 2).back(); }

private:
  std::mutex mutex;
  std::condition_variable came;
  std::vector<std::string> texts;
};

TEST(CompileProgress, SaysNothingOfAQuickCompile) {
  Written written;
  {
    CompileProgress progress(written.write(), {true, 1h, 1h});
    progress.begin("planning");
    progress.count(1, 2);
  }
  EXPECT_TRUE(written.wait(0).empty());
}

TEST(CompileProgress, WritesLinesToALog) {
  Written written;
  CompileProgress progress(written.write(), {false, 0ms, 1ms});
  progress.begin("planning");
  EXPECT_TRUE(written.next().starts_with("qloracc: planning, 0:00:"));
  progress.begin("compiling kernels for sm_90");
  progress.count(3, 8);
  const std::string files = written.next();
  EXPECT_TRUE(files.starts_with("qloracc: compiling kernels for sm_90: 3 of 8 "
                                "files, 0:00:")) << files;
  EXPECT_TRUE(files.ends_with("\n"));
  progress.end();
  const size_t after = written.wait(0).size();
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(written.wait(0).size(), after);
}

TEST(CompileProgress, LeavesATerminalAsItWas) {
  Written written;
  CompileProgress progress(written.write(), {true, 0ms, 1ms});
  progress.begin("planning");
  const std::string line = written.next();
  EXPECT_TRUE(line.starts_with("\r\033[Kqloracc: planning, 0:00:")) << line;
  EXPECT_TRUE(line.ends_with("\r"));
  progress.end();
  EXPECT_EQ(written.wait(0).back(), "\r\033[K");
}

} // namespace
} // namespace qlora
