// SPDX-License-Identifier: MIT

// Loops over independent tasks on an OpenMP thread pool; serial if OpenMP is
// off (under ThreadSanitizer).
//
// An exception that leaves a parallel region ends the process without a
// message. In these loops tasks may throw (out of memory): a loop keeps the
// first exception and rethrows it on the calling thread, after all tasks have
// ended. So the runtime uses only these loops, except one loop that calls
// generated C (Device/Cpu/CpuDevice.cpp), which throws nothing.

#ifndef QLORA_RUNTIME_KERNELS_CPU_PARALLEL_H
#define QLORA_RUNTIME_KERNELS_CPU_PARALLEL_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "runtime/Base/Status.h"

// Compiles a loop for several instruction sets; one is selected at load time.
// Off under ThreadSanitizer, whose runtime is not initialised at load time.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define QLORA_VECTOR                                                           \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define QLORA_VECTOR
#endif

/// Unrolls a loop of at most eight iterations completely.
#define QLORA_UNROLLED _Pragma("GCC unroll 8")

namespace qlora {

/// Threads that a parallel loop of this thread may use.
inline int64_t threadCount() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

/// Sets the number of threads of this thread's loops until the scope ends.
class ScopedThreads {
public:
  explicit ScopedThreads(int64_t threads) : before(threadCount()) {
    set(threads);
  }
  ~ScopedThreads() { set(before); }
  ScopedThreads(const ScopedThreads &) = delete;
  ScopedThreads &operator=(const ScopedThreads &) = delete;

private:
  static void set([[maybe_unused]] int64_t threads) {
#ifdef _OPENMP
    omp_set_num_threads(static_cast<int>(threads));
#endif
  }
  int64_t before;
};

/// Ends the threads that loops of this thread have used. libgomp counts the
/// threads of all such pools when it decides whether a waiting thread spins or
/// sleeps. With more threads than CPUs, waiting threads sleep and every loop
/// must wake them.
inline void releaseThreads() {
#ifdef _OPENMP
  omp_pause_resource_all(omp_pause_soft);
#endif
}

/// Keeps the first exception of a loop's tasks.
class LoopException {
public:
  template <typename Work> void keep(Work &&work) noexcept {
    try {
      work();
    } catch (...) {
      if (!isTaken.test_and_set())
        first = std::current_exception();
    }
  }
  void rethrow() const {
    if (first)
      std::rethrow_exception(first);
  }

private:
  std::atomic_flag isTaken;
  std::exception_ptr first;
};

/// Calls task(index, slot) once for each index in [0, count). `slot` is the
/// index of the task's scratch memory, below `slots` and below the number of
/// threads. At any time, at most one task has a given slot. Results must not
/// depend on the slot. Library calls inside a task run on its own thread only.
template <typename Task>
void parallelFor(int64_t count, int64_t slots, Task task) {
#ifdef _OPENMP
  const int64_t threads = std::min({slots, threadCount(), count});
  if (threads > 1) {
    LoopException exception;
#pragma omp parallel for schedule(dynamic, 1) num_threads(int(threads))
    for (int64_t index = 0; index < count; ++index)
      exception.keep([&] { task(index, int64_t(omp_get_thread_num())); });
    return exception.rethrow();
  }
#endif
  const ScopedThreads sequential(1);
  for (int64_t index = 0; index < count; ++index)
    task(index, int64_t(0));
}

/// Calls task(begin, end) for ranges that cover [0, count), one per thread.
/// Each has at least `grain` indices, unless `count` is smaller.
template <typename Task>
void parallelRanges(int64_t count, int64_t grain, Task task) {
  const int64_t most =
      std::max<int64_t>(1, count / std::max<int64_t>(1, grain));
  const int64_t ranges = std::min(threadCount(), most);
  parallelFor(ranges, ranges, [&](int64_t index, int64_t) {
    task(count * index / ranges, count * (index + 1) / ranges);
  });
}

/// Returns a `grain` for parallelRanges over rows of `columns` elements.
inline int64_t rowGrain(int64_t columns) { return 1 + 16384 / columns; }

/// parallelFor over tasks that may fail. Created once; a run does not allocate.
class FallibleTasks {
public:
  /// Uses at most `slots` slots, and at most this thread's threads.
  explicit FallibleTasks(int64_t slots)
      : ends(static_cast<size_t>(std::min(slots, threadCount())),
             Status::ok()) {}

  int64_t slots() const { return static_cast<int64_t>(ends.size()); }

  /// Calls every task. Returns the failure of the lowest slot that has one.
  template <typename Task> Status run(int64_t count, Task task) {
    std::ranges::fill(ends, Status::ok());
    parallelFor(count, slots(), [&](int64_t index, int64_t slot) {
      Status end = task(index, slot);
      if (!end.isOk())
        ends[static_cast<size_t>(slot)] = std::move(end);
    });
    for (const Status &end : ends)
      QLORA_RETURN_IF_ERROR(end);
    return Status::ok();
  }

private:
  std::vector<Status> ends; ///< per slot
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_PARALLEL_H
