// SPDX-License-Identifier: MIT

// Runs of a sweep in one process: they train over one base, each with adapters,
// optimizer and activations of its own, and decode each piece of a weight once
// for all of them.
//
// A run is a thread, and one of them works at a time: the one whose turn it is.
// A turn ends where an entry has to be run. When all runs have come there, a
// thread for that runs the entries of all, side by side: each up to its next
// product with a weight that is decoded piece by piece, then these products
// together, each as it would be alone (LibraryKernel::runTogether). So the
// numbers of a run are those that it has by itself; and one pool of threads runs
// all loops, which one for each run would make sleep and wake (releaseThreads).
//
//   entry of run 0   . . . x W0 | . . x W1 | . .
//   entry of run 1   . . . x W0 | . . x W1 | . .     one decode of W0, of W1
//
// Entries go together that have the same products with the same weights in one
// order, whatever else they do: other ranks of LoRA or another learning rate are
// no special case. Those without such products run one after another. Where
// entries differ, those go first of the run that has run the fewest, and the
// others wait.
//
// Threads: a run's thread calls begin(), run() and leave() with the number of
// the run. A run that ends, however it does, calls leave(). One more thread
// calls runEntries(), which returns when all runs have left.

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
  /// Names its shared products in their order.
  virtual const std::string &order() const = 0;
  /// Threads that its loops use.
  virtual int64_t loopThreads() const = 0;
  /// Runs it up to its next shared product, which follows; no kernel at the end.
  virtual StatusOr<LaunchTogether> advance() = 0;
};

class SweepTurns {
public:
  explicit SweepTurns(size_t runs) : runs(runs) {
    group.reserve(runs);
    products.reserve(runs);
  }

  /// What kernels keep nothing in from one command to the next is one memory
  /// for all runs, as large as the largest needs it. Before the first turn.
  Status allocateWorkspace(uint64_t bytes) {
    QLORA_ASSIGN_OR_RETURN(shared, HostMemory::anonymous(bytes));
    return Status::ok();
  }
  std::span<uint8_t> workspace() const { return shared.bytes(); }

  /// Waits for the first turn of the run.
  void begin(size_t run);
  /// Returns when the entry has run and the turn is this run's again.
  Status run(size_t run, SweepEntry &entry);
  void leave(size_t run);
  void runEntries();

private:
  enum class State { kReady, kWaiting, kGone };
  struct Run {
    State state = State::kReady;
    SweepEntry *entry = nullptr; ///< that waits
    uint64_t entries = 0;        ///< run so far
    Status status;               ///< of the last one
    bool isDone = false;         ///< with it
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
  std::vector<Run *> group; ///< whose entries are run
  std::vector<LaunchTogether> products; ///< where they are
  HostMemory shared;
  static constexpr size_t kEntries = SIZE_MAX; ///< the turn of runEntries()
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_SWEEPTURNS_H
