// SPDX-License-Identifier: MIT

// Estimates how many bytes of its arenas a run touches.
//
// Arenas have space for a program's largest variant, but the system allocates a
// page when it is first written. So a run whose steps all fit into smaller
// variants never has the rest in memory. The variants that a run needs are
// known before step 1: data, order and the assignment of rows (StepPacking.h)
// give the lengths of all its steps. Frozen, host and trainable arenas count
// completely, since reading weights fills them. In other arenas, pages count if
// a command of a needed entry uses them.
//
// The estimate is an upper bound. A kernel may touch less than its operands (an
// LM head with few labelled rows), and a system without huge pages allocates
// smaller pages than are counted here.

#ifndef QLORA_RUNTIME_PREDICT_RESIDENTMEMORYESTIMATE_H
#define QLORA_RUNTIME_PREDICT_RESIDENTMEMORYESTIMATE_H

#include <cstdint>
#include <set>

#include "runtime/Data/Schedule.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Counts the memory that one rank touches. `module` outlives this object.
class ResidentMemoryEstimate {
public:
  /// The page size that arenas request (Base/HostMemory.h).
  static constexpr uint64_t kPageBytes = uint64_t{2} << 20;
  /// A run with more padded micro-batches than this, over all ranks, is assumed
  /// to need every entry: reading the lengths of 10^6 rows takes 0.2 to 0.6 s.
  static constexpr int64_t kWalkedMicroBatches = int64_t{1} << 19;

  ResidentMemoryEstimate(const LoadedModule &module, int64_t rank)
      : module(module), rank(rank) {}

  /// Adds the first `steps` steps of training.
  void addTraining(Schedule &schedule, const StepShape &shape, int64_t steps);
  /// Adds an evaluation, in file order.
  void addEvaluation(Schedule &schedule, const StepShape &shape);

  /// Adds the generation of answers, which may fill all slots of the caches.
  void addGeneration();

  /// Touched bytes of all arenas together.
  uint64_t bytes() const;
  /// Bytes of all arenas that are not touched.
  uint64_t untouchedBytes() const;

private:
  void add(qlora_entry_kind kind, const BatchShape &shape);
  void addAll(qlora_entry_kind kind);

  const LoadedModule &module;
  const int64_t rank;
  std::set<const qlora_entry *> entries;
};

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_RESIDENTMEMORYESTIMATE_H
