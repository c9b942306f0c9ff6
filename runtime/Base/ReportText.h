// SPDX-License-Identifier: MIT

// What is shown to people: numbers with units, lines of steps, bars, the plan
// table. Pure functions from values to text.

#ifndef QLORA_RUNTIME_BASE_REPORTTEXT_H
#define QLORA_RUNTIME_BASE_REPORTTEXT_H

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Amounts.h"

namespace qlora {

std::string formatDuration(double seconds); ///< "0:12:10"
std::string formatRate(double perSecond);   ///< "40.3k"
std::string formatShort(double value);      ///< "1.9e-4", "0.87"

/// One logged step.
struct StepReport {
  int64_t step = 0; ///< steps done
  int64_t totalSteps = 0;
  double epoch = 0;
  double loss = 0;
  double gradNorm = 0;
  double learningRate = 0;
  double stepSeconds = 0;
  double tokensPerSecond = 0; ///< of all ranks
  double etaSeconds = 0;
};

/// Above the lines of steps, in their columns. Both fit into 80 columns up to
/// a million steps.
std::string stepHeading(int64_t totalSteps);
///  120/1000   1.44   1.2345       0.87     1.9e-4      812    40.3k    0:12:10
std::string stepLine(const StepReport &report);

/// What a bar or a line of progress shows.
struct ProgressView {
  std::string what; ///< "loading the base"
  uint64_t done = 0;
  uint64_t total = 0; ///< 0: not known
  double seconds = 0; ///< since it began
  bool isBytes = false;
  std::string unit; ///< "rows"; of rates and counts that are no bytes
};

/// loading the base [=====>    ] 45 %, 1.2 GiB/s, 0:00:12 left; `columns`
/// wide at most, without an end of line.
std::string progressBar(const ProgressView &view, int columns);
/// loading the base: 1.2 of 2.4 GiB, 1.2 GiB/s, 0:00:12 left
std::string progressLine(const ProgressView &view);

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

#endif // QLORA_RUNTIME_BASE_REPORTTEXT_H
