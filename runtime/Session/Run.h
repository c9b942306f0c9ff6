// SPDX-License-Identifier: MIT

// What the parts of a training run share, once everything is loaded.

#ifndef QLORA_RUNTIME_SESSION_RUN_H
#define QLORA_RUNTIME_SESSION_RUN_H

#include <string>

#include "runtime/Base/Options.h"
#include "runtime/Data/Dataset.h"
#include "runtime/Device/Device.h"
#include "runtime/Device/Program.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

class Profiler;

/// References to what the session owns.
struct Run {
  const LoadedModule &module;
  const Options &options;
  RankGroup &group;
  Device &device;
  Program &program;
  Dataset *train;      ///< null: only evaluate
  Dataset *validation; ///< null: no evaluation
  Metrics *metrics;    ///< null on ranks other than 0
  std::string outputFolder;
  KernelObserver &observer;
  Profiler *profiler = nullptr; ///< null: no profile is asked for
  /// Of this process before weights are read, where arenas are its memory.
  uint64_t processBytes = 0;
  /// Of the arenas, what this rank will not touch (TouchedMemory.h).
  uint64_t untouchedBytes = 0;

  /// K micro-batches of each of N ranks in a step.
  StepShape stepShape() const {
    return {options.integer("gradient_accumulation_steps"), group.size()};
  }
  /// K N: micro-batches of a step over all ranks.
  int64_t perStep() const { return stepShape().count(); }
  /// Steps that the options ask for; 0 without data to train on.
  int64_t totalSteps() const;
  /// Bytes of all arenas of this rank.
  uint64_t plannedBytes() const;
  /// Memory that this rank uses now, and at most so far: of its device where
  /// that has memory of its own (its arenas are allocated once, so both are
  /// one number), else of its process.
  uint64_t memoryBytes() const;
  uint64_t peakMemoryBytes() const;
  /// Sets `untouchedBytes`, where arenas are memory of this process.
  void countUntouched();
  /// What peakMemoryBytes() will be (Base/ProcessMemory.h); 0 where the device
  /// has memory of its own.
  uint64_t predictedPeakMemoryBytes() const;
  /// The TRAINABLE arena as it is now: itself, or else read into `copy`.
  StatusOr<std::span<const uint8_t>>
  trainedBytes(std::vector<uint8_t> &copy) const;

private:
  /// The HOST arena too.
  uint64_t arenaBytes() const;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUN_H
