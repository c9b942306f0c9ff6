// SPDX-License-Identifier: MIT

// Tests which entries of a sweep's runs execute together, and which in turn.

#include "runtime/Device/Cpu/SweepTurns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

namespace qlora {
namespace {

/// Logs the number of launches that run together.
class CountingKernel final : public LibraryKernel {
public:
  explicit CountingKernel(std::vector<size_t> &log) : log(log) {}
  Status run(const LibraryKernelArgs &) override { return Status::ok(); }
  Status runTogether(std::span<const LaunchTogether> launches) override {
    log.push_back(launches.size());
    return Status::ok();
  }

private:
  std::vector<size_t> &log;
};

/// An entry with `count` GEMMs that several runs can execute together. The GEMM
/// with index `fails` returns an error or throws.
class Products final : public SweepEntry {
public:
  Products(std::string name, int count, LibraryKernel &kernel, int fails = -1)
      : name(std::move(name)), count(count), fails(fails), kernel(kernel) {}
  const std::string &order() const override { return name; }
  int64_t loopThreads() const override { return 1; }
  StatusOr<LaunchTogether> advance() override {
    if (done == fails && throws)
      throw std::bad_alloc();
    if (done == fails)
      return Status::invalid("a product failed");
    if (done++ == count)
      return LaunchTogether();
    return LaunchTogether{&kernel, &args};
  }

  bool throws = false;

private:
  std::string name;
  int count, done = 0, fails;
  LibraryKernel &kernel;
  LibraryKernelArgs args;
};

using Work = std::function<void(SweepTurns &, size_t run)>;

void runAll(size_t count, const Work &work) {
  SweepTurns turns(count);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { turns.runEntries(); });
  for (size_t run = 0; run < count; ++run)
    threads.emplace_back([&, run] {
      turns.begin(run);
      work(turns, run);
      turns.leave(run);
    });
  for (std::thread &thread : threads)
    thread.join();
}

TEST(SweepTurns, EqualEntriesGoTogether) {
  std::vector<size_t> log;
  CountingKernel kernel(log);
  runAll(3, [&](SweepTurns &turns, size_t run) {
    for (int step = 0; step < 2; ++step) {
      Products entry("W0 W1", 2, kernel);
      EXPECT_TRUE(turns.run(run, entry).isOk());
    }
  });
  EXPECT_EQ(log, std::vector<size_t>({3, 3, 3, 3}));
}

TEST(SweepTurns, OtherEntriesWaitAndMeetAgain) {
  std::vector<size_t> log;
  CountingKernel kernel(log);
  runAll(2, [&](SweepTurns &turns, size_t run) {
    if (run == 1) { // run 1 evaluates first
      Products evaluate("W0", 1, kernel);
      EXPECT_TRUE(turns.run(run, evaluate).isOk());
    }
    for (int step = 0; step < 2; ++step) {
      Products entry("W0 W1", 2, kernel);
      EXPECT_TRUE(turns.run(run, entry).isOk());
    }
  });
  // Run 0's first step (two GEMMs), then the evaluation, then both runs
  // together, then run 1's last step.
  EXPECT_EQ(log, std::vector<size_t>({1, 1, 1, 2, 2, 1, 1}));
}

TEST(SweepTurns, WhoEndsIsNotWaitedFor) {
  std::vector<size_t> log;
  CountingKernel kernel(log);
  runAll(3, [&](SweepTurns &turns, size_t run) {
    for (size_t step = 0; step < 1 + run; ++step) {
      Products entry("W0", 1, kernel);
      EXPECT_TRUE(turns.run(run, entry).isOk());
    }
  });
  EXPECT_EQ(log, std::vector<size_t>({3, 2, 1}));
}

TEST(SweepTurns, WhoFailsLeavesTheGroup) {
  std::vector<size_t> log;
  CountingKernel kernel(log);
  std::atomic<int> failures = 0;
  runAll(3, [&](SweepTurns &turns, size_t run) {
    for (const bool throws : {false, true}) {
      Products entry("W0 W1", 2, kernel, run == 1 ? 1 : -1);
      entry.throws = throws;
      failures += !turns.run(run, entry).isOk();
    }
  });
  EXPECT_EQ(log, std::vector<size_t>({3, 2, 3, 2}));
  EXPECT_EQ(failures, 2);
}

/// Only one thread runs at a time, so `working` and `log` need no lock.
TEST(SweepTurns, OneWorksAtATime) {
  std::vector<size_t> log;
  CountingKernel kernel(log);
  int working = 0;
  runAll(4, [&](SweepTurns &turns, size_t run) {
    for (int step = 0; step < 20; ++step) {
      EXPECT_EQ(working++, 0);
      std::this_thread::yield();
      --working;
      Products entry(step % (1 + run) ? "W0" : "W1", 3, kernel);
      EXPECT_TRUE(turns.run(run, entry).isOk());
    }
  });
}

} // namespace
} // namespace qlora
