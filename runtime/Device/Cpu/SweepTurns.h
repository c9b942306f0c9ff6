// SPDX-License-Identifier: MIT

// Runs of a sweep in one process: they train over one base, each with adapters,
// optimizer and activations of its own, and decode each piece of a weight once
// for all of them.
//
// A run is a thread, and one of them works at a time: the one whose turn it is.
// A turn ends at a product with a weight that is decoded piece by piece. The
// last run that comes there makes the products of all, piece after piece, each
// as it would alone (LibraryKernel::runTogether), goes on to the next one, and
// hands over. So the numbers of a run are those that it has alone.
//
//   run 0   x . W0 next | all x . W0 are made     | on, to W1: make all x . W1
//   run 1               | by run 1, on to W1 next |
//
// Entries go together that have the same products with the same weights in one
// order, whatever else they do: other ranks of LoRA or another learning rate are
// no special case. Where entries differ, those go first of the run that has
// begun the fewest, and the others wait.
//
// Threads: a run's thread calls all methods with the number of the run. A run
// that ends, however it does, calls leave().

#ifndef QLORA_RUNTIME_DEVICE_CPU_SWEEPTURNS_H
#define QLORA_RUNTIME_DEVICE_CPU_SWEEPTURNS_H

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/Kernels/LibraryKernel.h"

namespace qlora {

class SweepTurns {
public:
  explicit SweepTurns(size_t runs) : runs(runs) { together.reserve(runs); }

  /// Waits for the first turn of the run.
  void begin(size_t run);
  /// An entry begins; `order` names its shared products (not empty), and
  /// outlives it.
  void enter(size_t run, const std::string &order);
  /// One of them. Returns when it is done and the turn is this run's.
  Status multiply(size_t run, LibraryKernel &kernel,
                  const LibraryKernelArgs &args);
  void leave(size_t run);

private:
  enum class State { kReady, kEntering, kMultiplying, kGone };
  struct Run {
    State state = State::kReady;
    const std::string *order = nullptr; ///< of its entry
    uint64_t entries = 0;               ///< begun so far
    LaunchTogether product = {};        ///< that waits
    Status status;                      ///< of the last one
  };

  using Lock = std::unique_lock<std::mutex>;
  void wait(Lock &lock, size_t run) {
    turned.wait(lock, [&] { return turn == run; });
  }
  size_t next(State state, size_t from) const;
  size_t leastAdvanced() const;
  void handOver(size_t from);
  void makeProducts(Lock &lock);

  std::mutex mutex;
  std::condition_variable turned;
  std::vector<Run> runs;
  size_t turn = 0;
  bool productsAreDue = false; ///< whoever has the turn makes them
  std::vector<LaunchTogether> together;
  static constexpr size_t kNobody = SIZE_MAX;
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CPU_SWEEPTURNS_H
