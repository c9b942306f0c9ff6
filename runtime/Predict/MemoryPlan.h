// SPDX-License-Identifier: MIT

// The memory of a run as tables: planned before step 1, and next to what was
// measured at the end.

#ifndef QLORA_RUNTIME_PREDICT_MEMORYPLAN_H
#define QLORA_RUNTIME_PREDICT_MEMORYPLAN_H

#include <cstdint>
#include <span>
#include <string>

#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// A row of the memory table; measured 0: not yet. What is not counted comes
/// after the total; a part of the row above it is not counted either, and has
/// no measurement.
struct PlanRow {
  std::string name;
  uint64_t planned = 0;
  uint64_t measured = 0;
  std::string note;
  bool isCounted = true;
  bool isPart = false;
};

/// The rows, aligned, with a total of the planned (and measured) bytes.
std::string planTable(const std::string &title, std::span<const PlanRow> rows,
                      bool withMeasured);

/// The memory of a rank. `module` and `device`, which has loaded it, outlive
/// this.
class RunMemory {
public:
  /// `processBytes`: of this process before weights are read, where arenas are
  /// its memory, else 0. `untouchedBytes`: of the arenas, what this rank will
  /// not touch (TouchedMemory.h). `bufferBytes`: host memory for what checkpoints
  /// send and write at a time.
  RunMemory(const LoadedModule &module, const Device &device,
            uint64_t processBytes, uint64_t untouchedBytes,
            uint64_t bufferBytes)
      : module(module), device(device), processBytes(processBytes),
        untouchedBytes(untouchedBytes), bufferBytes(bufferBytes) {}

  /// Bytes of all arenas but those on the host, and of these.
  uint64_t planned() const;
  uint64_t plannedOnHost() const;
  /// Memory that this rank uses now, and at most so far: of its device where
  /// that has memory of its own (its arenas are allocated once, so both are
  /// one number), else of its process.
  uint64_t now() const;
  uint64_t peak() const;
  /// What peak() will be (Base/HostMemory.h); 0 where the device has memory
  /// of its own.
  uint64_t predictedPeak() const;

  uint64_t checkpointBuffer() const { return bufferBytes; }

  /// The checkpoint buffer. If arenas are memory of the process, also the process
  /// without them, what of them is not touched (no line if that is nothing), and
  /// the peak that this gives.
  std::string residentText() const;
  /// Planned and allocated bytes per arena, and the process's peak; beside
  /// what was predicted, where it was.
  std::string measuredText() const;

private:
  const LoadedModule &module;
  const Device &device;
  uint64_t processBytes;
  uint64_t untouchedBytes;
  uint64_t bufferBytes;
};

/// Bytes per arena of one rank, in the order of the ABI, those of activations
/// by what they are for.
std::string planText(const LoadedModule &module, const Device &device,
                     int ranks);

/// How the ranks work together, and what that takes, in a line: "data parallel,
/// each a whole base (0.4 GiB); sums 9.0 MiB of gradients a step". On a GPU
/// each rank has a base of its own, since a card is a memory of its own; ranks
/// of one machine's CPU share one.
std::string parallelText(const LoadedModule &module, int ranks);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_MEMORYPLAN_H
