// SPDX-License-Identifier: MIT

// Compares runs with the first of them: speed, memory, loss, and which
// differences exceed the noise.
// Differences are tested with the bootstrap (Efron 1979): the logged values are
// resampled with replacement, 2,000 times from a fixed seed. The middle 95 % of
// the results is the interval. If it contains "no difference", the runs tie.
//
//   speed  tokens over seconds of the logged lines, except the first, which
//          includes warm-up. Each run is resampled separately, in blocks of
//          neighbours, since a busy machine stays busy for a while.
//   loss   training losses of the last quarter of the lines. If both runs
//          logged the same steps, their differences are resampled in blocks of
//          neighbours (Künsch 1989), since losses of near steps are similar;
//          else each run is resampled separately.

#ifndef QLORA_RUNTIME_WATCH_RUNCOMPARISON_H
#define QLORA_RUNTIME_WATCH_RUNCOMPARISON_H

#include <optional>
#include <string>
#include <vector>

#include "runtime/Watch/RunFolder.h"

namespace qlora {

struct Estimate {
  double value, low, high; ///< `low` and `high`: the interval
  bool holds(double none) const { return low <= none && none <= high; }
};

/// A run compared with the first run. Unknown values are NaN or nullopt.
struct ComparedRun {
  std::string name;
  double ranks, steps, tokens, tokensPerSecond, planned, peak, loss,
      evaluationLoss;
  std::optional<Estimate> speedUp; ///< nullopt if there are too few lines
  double efficiency;               ///< speed-up per rank
  double exposed;                  ///< fraction of time waiting for other ranks
  std::optional<Estimate> lossDifference; ///< run minus first run
};

struct SpeedWindow {
  double tokens, seconds;
};
/// Returns the total tokens per total seconds of `run`, divided by the same
/// rate of `first`. Returns nullopt if either has fewer than 3 windows.
std::optional<Estimate> speedRatio(const std::vector<SpeedWindow> &run,
                                   const std::vector<SpeedWindow> &first);

/// Returns the mean loss of a run minus the first run's. `arePaired`: both are
/// from the same steps. Returns nullopt if either has fewer than 3 losses.
std::optional<Estimate> meanDifference(const std::vector<double> &run,
                                       const std::vector<double> &first,
                                       bool arePaired);

/// Compares each run with the first. `runs` must not be empty.
std::vector<ComparedRun> compareRuns(const std::vector<RunFolder> &runs);

/// Returns the table: rows of a name and a text for each run. The first row has
/// the names of the runs.
std::vector<TextRow> comparisonRows(const std::vector<ComparedRun> &runs);

/// Returns the table as text for a terminal.
std::string comparisonTable(const std::vector<ComparedRun> &runs);

/// Returns the table as a page, with loss against tokens and against time.
std::string comparisonPage(const std::vector<RunFolder> &runs,
                           const std::vector<ComparedRun> &compared);

/// Writes the page of comparisonPage(). Returns the options that differ, the
/// table and the page's path.
StatusOr<std::string> writeComparison(const std::vector<RunFolder> &runs,
                                      const std::string &page);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_RUNCOMPARISON_H
