// SPDX-License-Identifier: MIT

// Reports on training steps: a line for some steps, a progress bar in between,
// and a warning if training diverges although all values are finite. It only
// observes. The trainer calls it on every rank for each step with results. Only
// rank 0 writes, including memory and GPU readings of the other ranks.

#ifndef QLORA_RUNTIME_WATCH_STEPLOG_H
#define QLORA_RUNTIME_WATCH_STEPLOG_H

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Data/Schedule.h"
#include "runtime/Device/Device.h"
#include "runtime/Device/Program.h"
#include "runtime/Predict/MemoryPlan.h"
#include "runtime/Watch/Metrics.h"
#include "runtime/Watch/Profiler.h"
#include "runtime/Watch/ProgressLine.h"
#include "runtime/Watch/Stragglers.h"

namespace qlora {

/// Detects a gradient of exactly 0, and a loss that has risen back to ln V,
/// that of random guessing from a vocabulary of V tokens. Reports each once.
class Divergence {
public:
  /// `vocabSize` is V. `learningRate` is for the warning's advice.
  Divergence(double vocabSize, double learningRate);

  /// Checks a logged step. Returns a warning, or an empty string.
  std::string check(const StepReport &report);

  /// Returns the state to store for a resumed run.
  nlohmann::ordered_json state() const;
  void restore(const nlohmann::ordered_json &state);

private:
  const double guessing; ///< loss of random guessing: ln(vocabulary size)
  const double learningRate;
  double best = std::numeric_limits<double>::infinity();
  int inARow = 0; ///< consecutive logged losses at the guessing level
  bool saidZero = false, saidGuessing = false;
};

/// The results of a step.
struct SettledStep {
  int64_t step = 0;   ///< number of the step, from 0
  int64_t tokens = 0; ///< sum of all ranks, without padding
  bool hasUpdate = false; ///< false without labels, or if values are not finite
  double loss = 0;
  double gradNorm = 0;
  double learningRate = 0;
  LossSums sums = {};
};

/// Adds the preference metrics under TRL's names after `prefix`, and the
/// routers' loss divided by `routerFactor`. Adds nothing if neither exists.
void addSums(nlohmann::ordered_json &values, const std::string &prefix,
             const LossSums &sums, double routerFactor);

/// Totals over all steps.
struct StepTotals {
  double seconds = 0;
  double meanLoss = 0;
  int64_t tokens = 0;
  bool hasDiverged = false; ///< whether a warning was given
};

/// Converts the window's state in a checkpoint of an earlier version: derives
/// "preferences" from "pairs", whose "sums" may have fewer values.
nlohmann::ordered_json withPreferences(nlohmann::ordered_json window);

/// The run to log; all of it must outlive the log.
struct LoggedRun {
  Metrics *metrics;   ///< null on ranks other than 0
  Profiler *profiler; ///< null: not profiled
  const Schedule &schedule;
  const RunMemory &memory;
  const Device &device;
  const Program &program;
  Collectives &ranks;
  int64_t perStep;    ///< micro-batches over all ranks
  int64_t totalSteps;
  int64_t every; ///< steps between lines: logging_steps
  double routerFactor; ///< factor of the routers' loss; 0: no routers
  bool hasEqualRanks; ///< whether all ranks have the same work
  bool mayAssign;     ///< whether a rank can get less work
};

/// Used on the session's thread only.
class StepLog {
public:
  StepLog(const LoggedRun &run, Divergence divergence)
      : run(run), divergence(divergence) {}

  /// `isDue`: logs a line. `isEnd`: no step follows, in this run or in one
  /// that resumes it.
  Status add(const SettledStep &step, bool isDue, bool isEnd);

  /// Returns the state that later lines and totals depend on, except times. A
  /// resumed run with this state logs the same values as an uninterrupted run.
  nlohmann::ordered_json state() const;
  void restore(const nlohmann::ordered_json &state, int64_t stepsDone);
  /// Excludes a pause from the training time.
  void leaveOut(std::chrono::steady_clock::duration pause) {
    start += pause;
    window.start += pause;
    takeWaits();
  }
  StepTotals totals() const;

private:
  using Clock = std::chrono::steady_clock;
  /// Sums since the last logged step.
  struct Window {
    Clock::time_point start = Clock::now();
    int64_t updates = 0;
    int64_t steps = 0;
    int64_t tokens = 0;
    double lossSum = 0;
    double waits = 0; ///< seconds of waiting for other ranks
    LossSums sums;
  };

  /// Gathers each rank's memory, GPU readings and step time (without waits).
  /// All ranks must call it together.
  StatusOr<nlohmann::ordered_json> readings(const Window &logged,
                                            double seconds);
  Status nameStraggler(const nlohmann::ordered_json &values);
  /// Returns seconds waited for other ranks since the last call; NaN: unknown.
  double takeWaits();
  Status log();

  const LoggedRun run;
  Divergence divergence;
  bool hasHeading = false;
  /// The latest step that had an update. Its `step` and `learningRate` are the
  /// latest step's, even if that step had no update.
  SettledStep last;
  int64_t updates = 0;
  int64_t tokens = 0;
  double lossSum = 0;
  bool hasDiverged = false;
  int64_t firstStep = 0;    ///< steps done before this process began
  double secondsBefore = 0; ///< duration of those steps
  double waitsBefore = 0; ///< waits at the last takeWaits()
  std::optional<Stragglers> stragglers; ///< if all ranks have the same work
  Clock::time_point start = Clock::now();
  Window window;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_STEPLOG_H
