// SPDX-License-Identifier: MIT

// Exceptions of tasks reach the caller of a parallel loop after all tasks have
// ended.

#include "runtime/Kernels/Cpu/Parallel.h"

#include "runtime/Base/Exceptions.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

using namespace qlora;

TEST(Parallel, ExceptionsOfTasksReachTheCaller) {
  const ScopedThreads threads(4);
  std::atomic<int64_t> called = 0;
  const auto loop = [&] {
    parallelFor(100, 4, [&](int64_t index, int64_t) {
      ++called;
      if (index == 37)
        throw std::bad_alloc();
    });
    return Status::ok();
  };
  const Status status = endExceptions("rank 0", loop);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("rank 0: out of memory"),
            status.message().npos);
  if (threadCount() > 1)
    EXPECT_EQ(called, 100);
}

TEST(Parallel, OneOfManyExceptionsIsKept) {
  const ScopedThreads threads(4);
  EXPECT_THROW(parallelRanges(1000, 1,
                              [](int64_t, int64_t) {
                                throw std::runtime_error("each range");
                              }),
               std::runtime_error);
  FallibleTasks tasks(4);
  EXPECT_THROW((void)tasks.run(
                   8, [](int64_t, int64_t) -> Status { throw 1; }),
               int);
}
