// SPDX-License-Identifier: MIT

// Tables of a run's memory: planned before step 1, and measured at the end.

#ifndef QLORA_RUNTIME_PREDICT_MEMORYPLAN_H
#define QLORA_RUNTIME_PREDICT_MEMORYPLAN_H

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// A row of the memory table. `measured` is 0 before the measurement. A row
/// with `isPart` is a part of the row above, so it is not added to the total,
/// and not measured. Rows without `isCounted` are printed after the total.
struct PlanRow {
  std::string name;
  uint64_t planned = 0;
  uint64_t measured = 0;
  std::string note;
  bool isCounted = true;
  bool isPart = false;
};

/// Formats the rows, aligned, with a total of the planned (and measured) bytes.
std::string planTable(const std::string &title, std::span<const PlanRow> rows,
                      bool withMeasured);

/// Returns the rows for the composition of the activations at their peak: a key
/// such as "recomputed", and a row of the table. Empty for old programs.
std::vector<std::pair<std::string, PlanRow>>
activationParts(const LoadedModule &module);

/// The memory of a rank. `module` and `device`, which loaded it, outlive this.
class RunMemory {
public:
  /// All arguments are in bytes. `processBytes`: this process before weights
  /// are read if arenas are process memory, else 0. `untouchedBytes`: arena
  /// bytes that this rank will not touch (ResidentMemoryEstimate.h).
  /// `bufferBytes`: host memory in which checkpoints are sent and written.
  RunMemory(const LoadedModule &module, const Device &device,
            uint64_t processBytes, uint64_t untouchedBytes,
            uint64_t bufferBytes)
      : module(module), device(device), processBytes(processBytes),
        untouchedBytes(untouchedBytes), bufferBytes(bufferBytes) {}

  /// Return the planned bytes of non-host arenas, and those of host arenas.
  uint64_t planned() const;
  uint64_t plannedOnHost() const;
  /// Return the bytes that this rank uses now, and their maximum so far. If the
  /// device has its own memory, both are the size of its arenas, which are
  /// allocated once; otherwise they are the process's resident memory.
  uint64_t now() const;
  uint64_t peak() const;
  /// Predicted peak() (Base/HostMemory.h); 0 if the device has its own memory.
  uint64_t predictedPeak() const;

  uint64_t checkpointBuffer() const { return bufferBytes; }

  /// Formats the checkpoint buffer. If arenas are process memory, also formats
  /// other process memory, untouched bytes (if any) and the predicted peak.
  std::string residentText() const;
  /// Formats planned and allocated bytes per arena and the process's peak, with
  /// their predictions if there are any.
  std::string measuredText() const;

private:
  const LoadedModule &module;
  const Device &device;
  uint64_t processBytes;
  uint64_t untouchedBytes;
  uint64_t bufferBytes;
};

/// Formats one rank's bytes per arena, in ABI order; splits activations.
std::string planText(const LoadedModule &module, const Device &device,
                     int ranks);

/// Formats in one line how ranks work together, with the bytes for that: "data
/// parallel, one shared base (0.4 GiB); 9.0 MiB of gradients per step". On GPUs
/// each rank has a base; CPU ranks of a machine share one.
std::string parallelText(const LoadedModule &module, int ranks);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_MEMORYPLAN_H
