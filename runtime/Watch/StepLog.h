// SPDX-License-Identifier: MIT

// What is said of steps while they are trained: a line every few of them, a
// bar in between, and a warning when something has gone wrong although every
// number is finite. It observes; the trainer calls it for each step whose
// results are there, on every rank; rank 0 alone writes, with what the others
// tell of their memory and their cards.

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

/// Finds a gradient of exactly 0, and a loss that has come back up to that of
/// guessing at random, ln V for V tokens. Each is said once.
class Divergence {
public:
  /// `vocabSize`: V. `learningRate`: the option's, for the advice.
  Divergence(double vocabSize, double learningRate);

  /// After a logged step: a warning, or nothing.
  std::string check(const StepReport &report);

  /// What it remembers, for a run that goes on with it.
  nlohmann::ordered_json state() const;
  void restore(const nlohmann::ordered_json &state);

private:
  const double guessing; ///< ln V
  const double learningRate;
  double best = std::numeric_limits<double>::infinity();
  int inARow = 0; ///< logged losses as high as guessing
  bool saidZero = false, saidGuessing = false;
};

/// The results of a step.
struct SettledStep {
  int64_t step = 0;   ///< from 0
  int64_t tokens = 0; ///< of all ranks, without padding
  bool hasUpdate = false; ///< without labels there is none, nor what follows
  double loss = 0;
  double gradNorm = 0;
  double learningRate = 0;
  LossSums sums = {};
};

/// What TRL logs of preferences and of routers' loss (before it is multiplied
/// with `routerFactor`), under its names behind `prefix`; nothing where there
/// are none.
void addSums(nlohmann::ordered_json &values, const std::string &prefix,
             const LossSums &sums, double routerFactor);

/// What all steps came to.
struct StepTotals {
  double seconds = 0;
  double meanLoss = 0;
  int64_t tokens = 0;
  bool hasDiverged = false; ///< a warning said so
};

/// The state of the steps since the last line, where a checkpoint from before
/// there were answers without pairs has fewer sums as "pairs".
nlohmann::ordered_json withPreferences(nlohmann::ordered_json window);

/// What is logged of; all of it outlives the log.
struct LoggedRun {
  Metrics *metrics;   ///< null on ranks other than 0
  Profiler *profiler; ///< or null
  const Schedule &schedule;
  const RunMemory &memory;
  const Device &device;
  Collectives &ranks;
  int64_t perStep;    ///< micro-batches of all ranks
  int64_t totalSteps;
  int64_t every; ///< logging_steps
  double routerFactor; ///< of the routers' loss in the loss; 0: there is none
  bool hasEqualRanks; ///< none has other work than the others
  bool mayDeal;       ///< one can be given less of it
};

/// Used by the session's thread.
class StepLog {
public:
  StepLog(const LoggedRun &run, Divergence divergence)
      : run(run), divergence(divergence) {}

  /// `isEnd`: no step follows, in this run or in one that resumes it.
  Status add(const SettledStep &step, bool isEnd);

  /// All that later lines and totals depend on, but for times: a run that is
  /// resumed with it logs what it would have logged without the break.
  nlohmann::ordered_json state() const;
  void restore(const nlohmann::ordered_json &state, int64_t stepsDone);
  /// A time that was no training.
  void leaveOut(std::chrono::steady_clock::duration pause) {
    start += pause;
    window.start += pause;
    takeWaits();
  }
  StepTotals totals() const;

private:
  using Clock = std::chrono::steady_clock;
  /// What has happened since the last logged step.
  struct Window {
    Clock::time_point start = Clock::now();
    int64_t updates = 0;
    int64_t steps = 0;
    int64_t tokens = 0;
    double lossSum = 0;
    double waits = 0; ///< seconds in which others were waited for
    LossSums sums;
  };

  /// Of all ranks, which call it together: memory, what cards say, and how long a
  /// step of `logged` was without waits.
  StatusOr<nlohmann::ordered_json> readings(const Window &logged,
                                            double seconds);
  Status nameStraggler(const nlohmann::ordered_json &values);
  /// Seconds of waits since the last call; NaN where nothing tells.
  double takeWaits();
  Status log();

  const LoggedRun run;
  Divergence divergence;
  bool hasHeading = false;
  SettledStep last; ///< that had an update, but for its number and rate
  int64_t updates = 0;
  int64_t tokens = 0;
  double lossSum = 0;
  bool hasDiverged = false;
  int64_t firstStep = 0;    ///< done before this process began
  double secondsBefore = 0; ///< that they took
  double waitsBefore = 0; ///< until the last call of takeWaits
  std::optional<Stragglers> stragglers; ///< of ranks that have the same work
  Clock::time_point start = Clock::now();
  Window window;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_STEPLOG_H
