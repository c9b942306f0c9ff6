// SPDX-License-Identifier: MIT

// How much of its arenas a run touches.
//
// Arenas have room for the largest variant of a program, but the system gives
// their pages when they are first written: a run whose steps all fit into
// smaller variants never has the rest in memory. Which variants a run needs is
// known before step 1, because the data, its order and how rows are dealt
// (StepPacking.h) are: its steps are walked by lengths, without a token. The
// frozen, host and trainable arenas are filled whole when weights are read; of
// the others, the pages count that a command of a needed entry names.
//
// It is an upper bound. A kernel may touch less than its operands (a head
// whose rows have few labels), and a system without huge pages gives smaller
// ones than are counted here.

#ifndef QLORA_RUNTIME_PREDICT_TOUCHEDMEMORY_H
#define QLORA_RUNTIME_PREDICT_TOUCHEDMEMORY_H

#include <cstdint>
#include <set>

#include "runtime/Data/Schedule.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Of one rank. `module` outlives this.
class TouchedMemory {
public:
  /// Arenas are advised to have pages of this size (Base/HostMemory.h).
  static constexpr uint64_t kPageBytes = uint64_t{2} << 20;
  /// A longer run, in micro-batches of all ranks as padded ones, is taken to
  /// need every entry: a million rows are 0.2 to 0.6 s of looking at lengths.
  static constexpr int64_t kWalkedMicroBatches = int64_t{1} << 19;

  TouchedMemory(const LoadedModule &module, int64_t rank)
      : module(module), rank(rank) {}

  /// The first `steps` steps of training.
  void addTraining(Schedule &schedule, const StepShape &shape, int64_t steps);
  /// An evaluation, in file order.
  void addEvaluation(Schedule &schedule, const StepShape &shape);

  /// Of all arenas together.
  uint64_t bytes() const;
  /// And what they have beside these.
  uint64_t untouchedBytes() const;

private:
  void add(qlora_entry_kind kind, const BatchShape &shape);
  void addAll(qlora_entry_kind kind);

  const LoadedModule &module;
  const int64_t rank;
  std::set<const qlora_entry *> entries;
};

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_TOUCHEDMEMORY_H
