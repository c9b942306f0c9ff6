// SPDX-License-Identifier: MIT

// What is shown to people: numbers with units, the progress line, the plan
// table. Pure functions from values to text.

#ifndef QLORA_RUNTIME_SESSION_REPORTTEXT_H
#define QLORA_RUNTIME_SESSION_REPORTTEXT_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/Core/Amounts.h"

namespace qlora {

std::string formatDuration(double seconds); ///< "0:12:10"
std::string formatRate(double perSecond);   ///< "40.3k"
std::string formatShort(double value);      ///< "1.9e-4", "0.87"

/// One logged step.
struct StepReport {
  int64_t step = 0; ///< steps done
  int64_t totalSteps = 0;
  double loss = 0;
  double gradNorm = 0;
  double learningRate = 0;
  double stepSeconds = 0;
  double tokensPerSecond = 0; ///< of all ranks
  uint64_t memoryBytes = 0;   ///< resident now, this rank
  uint64_t plannedBytes = 0;
  double etaSeconds = 0;
};

/// step 120/1000 12% | loss 1.2345 | gnorm 0.87 | lr 1.9e-4 | 812 ms |
/// 40.3k tok/s | mem 18.2 GiB (plan 18.1 GiB) | eta 0:12:10
std::string progressLine(const StepReport &report);

/// [=====>    ] 45/100 0:00:12, without an end of line, `columns` wide.
std::string progressBar(int64_t step, int64_t totalSteps, double etaSeconds,
                        int columns);

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

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_REPORTTEXT_H
