// SPDX-License-Identifier: MIT

// Runs side by side, the first of them being what the others are compared with:
// how fast, how much memory, how low the loss, and which of the differences are
// more than noise.
//
// A difference is judged by the bootstrap (Efron 1979): what was logged is drawn
// again, with repetition, 2,000 times from a fixed seed, and the middle 95 % of
// the values that this gives is its interval. One that holds "no difference"
// is a tie.
//
//   speed  tokens over seconds of the logged lines without the first, which has
//          the warm-up; each run's are drawn by themselves, in blocks of
//          neighbours, since a machine that is busy stays so for a while
//   loss   training losses of the last quarter of the lines. Where both runs
//          logged the same steps their differences are drawn, in blocks of
//          neighbours (Künsch 1989), since losses of near steps are alike;
//          else each run's own

#ifndef QLORA_RUNTIME_WATCH_RUNCOMPARISON_H
#define QLORA_RUNTIME_WATCH_RUNCOMPARISON_H

#include <optional>
#include <string>
#include <vector>

#include "runtime/Watch/RunFolder.h"

namespace qlora {

struct Estimate {
  double value, low, high; ///< with its interval
  bool holds(double none) const { return low <= none && none <= high; }
};

/// A run beside the first. What cannot be known is NaN or nothing.
struct ComparedRun {
  std::string name;
  double ranks, steps, tokens, tokensPerSecond, planned, peak, loss,
      evaluationLoss;
  std::optional<Estimate> speedUp;  ///< of too few lines there is none
  double efficiency;                ///< the speed-up of each rank
  double exposed;                   ///< share of time waiting for other ranks
  std::optional<Estimate> lossDifference; ///< minus the first's
};

/// Sum of `tokens` over sum of `seconds` for one run, divided by the other's.
/// Nothing where either has fewer than 3 windows.
struct SpeedWindow {
  double tokens, seconds;
};
std::optional<Estimate> speedRatio(const std::vector<SpeedWindow> &run,
                                   const std::vector<SpeedWindow> &first);

/// Mean of a run's losses minus that of the first's. `arePaired`: they are of
/// the same steps. Nothing where either has fewer than 3.
std::optional<Estimate> meanDifference(const std::vector<double> &run,
                                       const std::vector<double> &first,
                                       bool arePaired);

/// `runs`: at least one.
std::vector<ComparedRun> compareRuns(const std::vector<RunFolder> &runs);

/// A row of the table: what it is, and a text for each run.
struct ComparisonRow {
  std::string name;
  std::vector<std::string> values;
};
std::vector<ComparisonRow> comparisonRows(const std::vector<ComparedRun> &runs);

/// For a terminal.
std::string comparisonTable(const std::vector<ComparedRun> &runs);

/// The same as a page, with loss against tokens and against time.
std::string comparisonPage(const std::vector<RunFolder> &runs,
                           const std::vector<ComparedRun> &compared);

/// Writes that page of the runs, and returns the table, and where the page is.
StatusOr<std::string> writeComparison(const std::vector<RunFolder> &runs,
                                      const std::string &page);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_RUNCOMPARISON_H
