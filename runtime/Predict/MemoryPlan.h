// SPDX-License-Identifier: MIT

// The memory of a run as tables: planned before step 1, and next to what was
// measured at the end.

#ifndef QLORA_RUNTIME_PREDICT_MEMORYPLAN_H
#define QLORA_RUNTIME_PREDICT_MEMORYPLAN_H

#include <span>
#include <string>

#include "runtime/Device/Device.h"

namespace qlora {

/// A row of the memory table; measured 0: not yet. What is not counted comes
/// after the total.
struct PlanRow {
  std::string name;
  uint64_t planned = 0;
  uint64_t measured = 0;
  std::string note;
  bool isCounted = true;
};

/// The rows, aligned, with a total of the planned (and measured) bytes.
std::string planTable(const std::string &title, std::span<const PlanRow> rows,
                      bool withMeasured);

/// Bytes per arena of one rank, in the order of the ABI.
std::string planText(const Device &device, int ranks);

/// The process beside arenas that are its memory (Base/ProcessMemory.h):
/// `processBytes` before them, what of them is not touched (TouchedMemory.h;
/// no line where that is nothing), and the peak that this gives.
std::string residentText(uint64_t processBytes, uint64_t untouchedBytes,
                         uint64_t predictedPeak);

/// Planned and allocated bytes per arena, and the process's peak; beside what
/// was predicted, unless that is 0.
std::string measuredText(const Device &device, uint64_t predictedPeak);

} // namespace qlora

#endif // QLORA_RUNTIME_PREDICT_MEMORYPLAN_H
