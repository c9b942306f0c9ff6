// SPDX-License-Identifier: MIT

// Output, lines and exit of a child program.

#include "runtime/Base/Subprocess.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

using namespace qlora;
namespace fs = std::filesystem;

TEST(Subprocess, LargeOutputsOnBothPipes) {
  auto output = runProgram(
      {"/bin/sh", "-c",
       "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; exit 5"});
  ASSERT_TRUE(output.isOk());
  EXPECT_EQ(output->out.size(), 300000u);
  EXPECT_EQ(output->errors.size(), 200000u);
  EXPECT_EQ(output->exitCode, 5);
}

TEST(Subprocess, TheProgramIsToldThatThisOneHasEnded) {
  const std::string told =
      testing::TempDir() + "told" + std::to_string(getpid());
  fs::remove(told);
  const pid_t parent = fork();
  if (parent == 0) {
    // The shell sets its trap before it kills its parent, which is this
    // process.
    (void)runProgram({"/bin/sh", "-c",
                      "trap 'echo x > " + told +
                          "; exit' TERM; kill -9 $PPID; i=0; while [ $i -lt "
                          "500 ]; do i=$((i + 1)); sleep 0.01; done"});
    _exit(0);
  }
  waitpid(parent, nullptr, 0);
  for (int i = 0; i < 500 && !fs::exists(told); ++i)
    usleep(10000);
  EXPECT_TRUE(fs::remove(told));
}

TEST(Subprocess, WhoWatchesMayEndIt) {
  const auto start = std::chrono::steady_clock::now();
  int calls = 0;
  auto output = runProgram({"/bin/sleep", "60"}, {}, [&] {
    return ++calls < 2 ? Status::ok() : Status::invalid("enough");
  });
  EXPECT_EQ(output.status().message(), "enough");
  EXPECT_EQ(calls, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(Subprocess, LinesAreHeardWhenTheyCome) {
  // The program continues only after its first line was received.
  const std::string heard =
      testing::TempDir() + "heard" + std::to_string(getpid());
  fs::remove(heard);
  std::vector<std::string> lines;
  auto output = runProgram(
      {"/bin/sh", "-c",
       "echo first >&2; i=0; until [ -e " + heard +
           " ]; do i=$((i + 1)); [ $i -lt 500 ] || exit 1; sleep 0.01; done; "
           "printf 'kept\\nlast' >&2"},
      [&](std::string_view line) {
        lines.emplace_back(line);
        std::ofstream(heard) << line;
        return line != "kept";
      });
  fs::remove(heard);
  ASSERT_TRUE(output.isOk());
  EXPECT_EQ(output->exitCode, 0);
  EXPECT_EQ(lines, (std::vector<std::string>{"first", "kept"}));
  EXPECT_EQ(output->errors, "kept\nlast");
}
