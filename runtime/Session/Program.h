// SPDX-License-Identifier: MIT

// The entries of a module as the four things a session does: accumulate a
// micro-batch, update, evaluate, read results. Chooses the compiled variant
// by the micro-batch's length and knows where inputs and results live.

#ifndef QLORA_RUNTIME_SESSION_PROGRAM_H
#define QLORA_RUNTIME_SESSION_PROGRAM_H

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/Core/ModuleLoader.h"
#include "runtime/Core/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Session/Dataset.h"
#include "runtime/Session/StepPacking.h"

namespace qlora {

/// Sums over the labelled tokens of micro-batches.
struct LossSums {
  double loss = 0;
  double labels = 0;
};

/// The shapes that a module was compiled for: rows of several lengths, and
/// token buckets, which are lines of one row. Where rows come one by one, each
/// is the other too. kDataLoss when an entry of a variant is missing.
struct CompiledVariants {
  int64_t batch = 0;
  std::vector<int64_t> lengths; ///< of `batch` rows, ascending
  std::vector<int64_t> buckets; ///< of one row, ascending; may be empty
  PackingCosts costs;           ///< of the last bucket, in FLOPs

  static StatusOr<CompiledVariants> of(const LoadedModule &module);
};

/// Used by the session's thread. `module` and `device`, which has loaded it,
/// outlive this.
class Program {
public:
  Program(const LoadedModule &module, Device &device)
      : module(module), device(device) {}

  /// Forward and backward of one micro-batch into the gradient arena.
  Status accumulate(const MicroBatch &batch, const qlora_step_block &step);
  /// The last one of a step: with the collectives, and with a read of the
  /// step's sums. `mostLabels` is what Dataset says of it.
  Status accumulateLast(const MicroBatch &batch,
                        std::optional<int64_t> mostLabels,
                        const qlora_step_block &step);
  /// One optimizer step, with a read of its norm.
  Status update(const qlora_step_block &step);

  /// The reads that were started, which have to be finished in their order:
  /// loss and labels of a step, over all its micro-batches and ranks; the norm
  /// of its gradient before clipping.
  StatusOr<LossSums> finishSums();
  StatusOr<double> finishNorm() { return finishFloat(); }

  /// Forward only. `correct`: 1 where the target is the argmax.
  Status evaluate(const MicroBatch &batch, const qlora_step_block &step,
                  LossSums &sums, std::vector<int32_t> &correct);

private:
  StatusOr<const qlora_entry *> find(qlora_entry_kind kind,
                                     const MicroBatch &batch) const;
  Status writeInputs(const qlora_entry &entry, const MicroBatch &batch);
  Status runOn(const qlora_entry &entry, const MicroBatch &batch,
               std::optional<int64_t> mostLabels, const qlora_step_block &step);
  StatusOr<const qlora_binding *> result(const qlora_entry &entry,
                                         qlora_binding_kind kind) const;
  Status startFloat(const qlora_entry &entry, qlora_binding_kind kind);
  StatusOr<double> finishFloat();
  Status startSums(const qlora_entry &entry);

  const LoadedModule &module;
  Device &device;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_PROGRAM_H
