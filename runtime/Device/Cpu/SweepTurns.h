// SPDX-License-Identifier: MIT

// Schedules the runs of a sweep in one process. They share one copy of the
// frozen weights, and each panel of a weight is decoded once for all runs.
// Adapters, optimizer state and activations are per run.
//
// Each run is a thread. Threads take turns: only one works at a time. A turn
// ends when the run reaches an entry. When all runs have reached an entry, one
// extra thread runs all entries interleaved: each up to its next matmul with a
// weight that is decoded in panels, then these matmuls together. Each matmul
// gives the same bits as if it ran alone (LibraryKernel::runTogether), so other
// runs do not change a run's results. One thread pool runs all loops: several
// pools would sleep and wake for every loop (releaseThreads).
//
//   entry of run 0   . . . x W0 | . . x W1 | . .
//   entry of run 1   . . . x W0 | . . x W1 | . .     one decode of W0, of W1
//
// Entries run together if they have the same matmuls with the same weights in
// the same order. Other differences, such as LoRA ranks or learning rates, do
// not matter. Entries without such matmuls run one after another. If entries
// differ, the run with the fewest finished entries goes first.
//
// Threads: a run's thread calls begin(), run() and leave() with the run's
// index. Every run calls leave() when it ends, also after an error. One more
// thread calls runEntries(), which returns when all runs have left.

#ifndef QLORA_RUNTIME_DEVICE_CPU_SWEEPTURNS_H
#define QLORA_RUNTIME_DEVICE_CPU_SWEEPTURNS_H

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/Base/HostMemory.h"
#include "runtime/Kernels/LibraryKernel.h"

namespace qlora {

/// An entry that waits to be run.
class SweepEntry {
public:
  virtual ~SweepEntry() = default;
  /// Returns a text that identifies the entry's shared matmuls and their order.
  virtual const std::string &order() const = 0;
  /// Returns the number of threads that the entry's loops use.
  virtual int64_t loopThreads() const = 0;
  /// Runs the entry up to its next shared matmul. Returns this matmul, which
  /// has not run yet, or a null kernel at the entry's end.
  virtual StatusOr<LaunchTogether> advance() = 0;
};

class SweepTurns {
public:
  explicit SweepTurns(size_t runs) : runs(runs) {
    group.reserve(runs);
    products.reserve(runs);
  }

  /// Allocates one workspace for all runs; `bytes` must suffice for each run.
  /// Kernels keep no data in it between commands. Called before the first turn.
  Status allocateWorkspace(uint64_t bytes) {
    QLORA_ASSIGN_OR_RETURN(shared, HostMemory::anonymous(bytes));
    return Status::ok();
  }
  std::span<uint8_t> workspace() const { return shared.bytes(); }

  /// Waits for the first turn of the run.
  void begin(size_t run);
  /// Waits until the entry has run and it is this run's turn again.
  Status run(size_t run, SweepEntry &entry);
  void leave(size_t run);
  void runEntries();

private:
  enum class State { kReady, kWaiting, kGone };
  struct Run {
    State state = State::kReady;
    SweepEntry *entry = nullptr; ///< the waiting entry
    uint64_t entries = 0;        ///< entries run so far
    Status status;               ///< result of the latest entry
    bool isDone = false;         ///< the current entry has ended
  };

  using Lock = std::unique_lock<std::mutex>;
  void wait(Lock &lock, size_t run) {
    turned.wait(lock, [&] { return turn == run; });
  }
  size_t nextReady(size_t from) const;
  Run *leastAdvanced();
  void handOver(size_t from);
  void runTogether(Run &first);
  Status runGroup();
  void advance(Run &run);

  std::mutex mutex;
  std::condition_variable turned;
  std::vector<Run> runs;
  size_t turn = 0;
  std::vector<Run *> group; ///< runs whose entries run together
  std::vector<LaunchTogether> products; ///< next shared matmul per `group` run
  HostMemory shared;
  /// Value of `turn` if runEntries() has the turn, not a run.
  static constexpr size_t kEntries = SIZE_MAX;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_SWEEPTURNS_H
