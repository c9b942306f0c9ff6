// SPDX-License-Identifier: MIT

// The training loop. The host submits complete steps and reads the results of
// earlier ones (traits.lead), so that an asynchronous device always has work.
// The host counts labels in the data, so it knows which steps have an update.

#include "runtime/Session/Training.h"

#include <chrono>
#include <cmath>
#include <deque>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/BestModel.h"
#include "runtime/Session/Evaluation.h"
#include "runtime/Session/NonFinite.h"
#include "runtime/Session/StepSubmitter.h"
#include "runtime/Watch/Profiler.h"
#include "runtime/Watch/StepLog.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

namespace {

class Trainer {
public:
  Trainer(const Run &run, const TrainingTools &tools)
      : run(run), tools(tools), options(run.options), total(run.totalSteps),
        onNonFinite(options.text("on_nonfinite")), submitter(run, tools.extras),
        best(options),
        log({run.metrics, run.profiler, run.train->schedule(), run.memory,
             run.device, run.program, run.group.collectives(), run.perStep(),
             total, options.steps("logging_steps", total), run.routerFactor(),
             run.module.stages() == 1,
             !run.module.meetsInEntries() &&
                 !options.boolean("reproducible_reductions")},
            Divergence(options.recordedMetadata("vocab_size").get<double>(),
                       options.number("learning_rate"))) {}

  StatusOr<TrainingResult> train();

private:
  nlohmann::ordered_json state() const;
  void restore(const nlohmann::ordered_json &state);
  Status submitStep(int64_t step);
  Status settleStep();
  Status settleResults(SettledStep &settled, bool hasLabels);
  Status handleNonFinite(const SettledStep &settled);
  Status rewind(int64_t step);
  StatusOr<bool> advance(int64_t done);
  Status pauseAfter(int64_t done);
  Status evaluateAfter(int64_t done);
  Status switchTo(qlora_entry_kind kind);
  bool shouldLog(int64_t done) const;
  bool shouldEvaluate(int64_t done) const;
  bool shouldSave(int64_t done) const;
  Status save(int64_t done);
  bool hasStopped() const {
    return result.stopSignal != 0 || result.hasStoppedEarly;
  }
  bool isLast(int64_t done) const { return done == total || hasStopped(); }
  /// Returns how many earlier steps may be in flight; 0 if steps may be undone.
  size_t lead() const {
    return onNonFinite == "abort" ? static_cast<size_t>(run.device.traits.lead)
                                  : 0;
  }

  const Run &run;
  const TrainingTools tools;
  const Options &options;
  const int64_t total;
  const std::string onNonFinite;

  StepSubmitter submitter;
  SignalRequests requests;
  /// Steps whose results were not read, oldest first.
  std::deque<SubmittedStep> submitted;
  int64_t nonFiniteInARow = 0;
  int64_t evaluatedStep = 0;
  bool evaluationDue = false; ///< a signal ended the last evaluation
  BestModel best;
  StepLog log;
  TrainingResult result;
};

} // namespace

/// Returns everything that later steps depend on, except the arenas.
nlohmann::ordered_json Trainer::state() const {
  return {{"step", result.steps},
          {"updates", submitter.updates},
          {"next_micro_batch", result.steps * run.perStep()},
          {"non_finite_in_a_row", nonFiniteInARow},
          {"evaluation_due", evaluationDue},
          {"best", best.state()},
          {"log", log.state()}};
}

void Trainer::restore(const nlohmann::ordered_json &state) {
  result.steps = state.at("step");
  submitter.updates = state.at("updates");
  nonFiniteInARow = state.at("non_finite_in_a_row");
  evaluationDue = state.at("evaluation_due");
  evaluatedStep = evaluationDue ? -1 : result.steps;
  best.restore(state.at("best"));
  result.hasStoppedEarly = best.shouldStop();
  log.restore(state.at("log"), result.steps);
}

Status Trainer::submitStep(int64_t step) {
  QLORA_ASSIGN_OR_RETURN(const SubmittedStep submitting,
                         submitter.submit(step, requests));
  result.stopSignal = requests.stop;
  if (submitting.isCut) {
    while (!submitted.empty())
      QLORA_RETURN_IF_ERROR(settleStep());
    return run.program.finishSums().status();
  }
  submitted.push_back(submitting);
  result.steps = step + 1;
  return Status::ok();
}

/// Restores weights and optimizer states from this run's newest checkpoint. The
/// step count and the position in the data stay.
Status Trainer::rewind(int64_t step) {
  const CheckpointName name =
      tools.writer ? tools.writer->newest() : CheckpointName();
  QLORA_ASSIGN_OR_RETURN(const ResumePoint point,
                         findCheckpoint(name, run.group));
  QLORA_RETURN_IF_ERROR(
      restoreArenas(point, run.module, run.device, run.group));
  submitter.updates = point.state.at("updates");
  QLORA_RETURN_IF_ERROR(switchTo(QLORA_ENTRY_CONTINUE));
  if (run.metrics)
    run.metrics->warn(fmt::format(
        "rewound to the weights of '{}'; training continues after step {}",
        shownPath(point.folder), step + 1));
  return Status::ok();
}

/// Applies --on-nonfinite (NonFinite.h). The step has changed nothing.
Status Trainer::handleNonFinite(const SettledStep &settled) {
  --submitter.updates;
  QLORA_ASSIGN_OR_RETURN(const std::string where,
                         findNonFinite(run, settled.step,
                                       submitter.block(settled.step)));
  const bool isLoss = !std::isfinite(settled.loss);
  const std::string what = fmt::format(
      "the {} of step {} is {}{}{}", isLoss ? "loss" : "gradient norm",
      settled.step + 1, isLoss ? settled.loss : settled.gradNorm,
      where.empty() ? "" : ": ", where);
  const std::string advice =
      fmt::format("try a smaller --learning-rate (it was {}), or compile with "
                  "--compute-dtype float32",
                  formatShort(settled.learningRate));
  if (onNonFinite == "abort")
    return Status::invalid("{}. Fix: {}, or skip such steps with "
                           "--on-nonfinite skip. No adapter was overwritten",
                           what, advice);
  if (++nonFiniteInARow >= kMostInARow)
    return Status::invalid("{}, as in the {} steps before. Fix: {}", what,
                           nonFiniteInARow - 1, advice);
  if (run.metrics)
    run.metrics->warn(fmt::format("{}; the step is skipped", what));
  if (onNonFinite == "skip")
    return Status::ok();
  return rewind(settled.step).withContext(what);
}

Status Trainer::settleResults(SettledStep &settled, bool hasLabels) {
  const HostSlice slice(run.profiler, HostWork::kResults);
  QLORA_ASSIGN_OR_RETURN(const LossSums sums, run.program.finishSums());
  if (!hasLabels) {
    if (run.metrics)
      run.metrics->warn(fmt::format(
          "step {} has no token in the loss and is skipped", settled.step + 1));
    return Status::ok();
  }
  settled.sums = sums;
  settled.loss = sums.loss() / sums.labels();
  QLORA_ASSIGN_OR_RETURN(settled.gradNorm, run.program.finishNorm());
  settled.hasUpdate =
      std::isfinite(settled.loss) && std::isfinite(settled.gradNorm);
  if (!settled.hasUpdate)
    return handleNonFinite(settled);
  nonFiniteInARow = 0;
  return Status::ok();
}

/// Reads the results of the oldest submitted step.
Status Trainer::settleStep() {
  const SubmittedStep oldest = submitted.front();
  submitted.pop_front();
  SettledStep settled{oldest.step, oldest.tokens};
  settled.learningRate = submitter.rateAt(oldest.step);
  QLORA_RETURN_IF_ERROR(settleResults(settled, oldest.labels > 0));
  const int64_t done = oldest.step + 1;
  return log.add(settled, shouldLog(done), done == total);
}

bool Trainer::shouldLog(int64_t done) const {
  return done % options.steps("logging_steps", total) == 0 || done == total ||
         (done == 1 && options.boolean("logging_first_step"));
}

static int64_t stepsPerEpoch(const Run &run) {
  return run.train->schedule().stepsPerEpoch(run.perStep());
}

bool Trainer::shouldEvaluate(int64_t done) const {
  if (!run.validation)
    return false;
  std::string strategy = options.text("eval_strategy");
  int64_t every = options.steps("eval_steps", total);
  double passed = static_cast<double>(done); // in the unit of eval_delay
  if (strategy == "epoch") {
    every = stepsPerEpoch(run);
    passed /= static_cast<double>(every);
  } else if (strategy == "steps" && every == 0) {
    every = options.steps("logging_steps", total);
  }
  return every > 0 && done % every == 0 &&
         passed >= options.number("eval_delay");
}

/// Whether a checkpoint is due. If checkpoints are enabled, the end of training
/// also writes one, even after a stop signal.
bool Trainer::shouldSave(int64_t done) const {
  const std::string strategy = options.text("save_strategy");
  const int64_t every = strategy == "epoch"
                            ? stepsPerEpoch(run)
                            : options.steps("save_steps", total);
  const bool isDue = (every > 0 && done % every == 0) || isLast(done);
  return done > 0 && done != result.savedStep &&
         ((strategy != "no" && isDue) || requests.save);
}

Status Trainer::save(int64_t done) {
  requests.save = false;
  result.savedStep = done;
  const Clock::time_point start = Clock::now();
  if (!tools.writer)
    return CheckpointWriter::send(run);
  QLORA_RETURN_IF_ERROR(tools.writer->save(done, state(), best));
  result.saveSeconds +=
      std::chrono::duration<double>(Clock::now() - start).count();
  return Status::ok();
}

/// Evaluates. If a signal ends the evaluation, the resumed run repeats it.
Status Trainer::evaluateAfter(int64_t done) {
  QLORA_ASSIGN_OR_RETURN(
      const auto evaluation,
      evaluateAndLog(run, done,
                     run.train->schedule().epochAfter(done, run.perStep()),
                     fmt::format("after step {}", done)));
  evaluationDue = !evaluation;
  result.justEvaluated = evaluation.has_value();
  if (!evaluation)
    return Status::ok();
  evaluatedStep = done;
  best.add(*evaluation, done);
  if (!best.shouldStop() || isLast(done))
    return Status::ok();
  result.hasStoppedEarly = true;
  if (run.metrics)
    run.metrics->say(fmt::format(
        "stopped early: no better evaluation since step {}", best.step()));
  return Status::ok();
}

/// Switches between the trained weights and, for schedule-free AdamW, their
/// average, which is used and saved. Both are equal until the first update.
Status Trainer::switchTo(qlora_entry_kind kind) {
  return submitter.updates == 0
             ? Status::ok()
             : run.program.switchTo(kind, submitter.block(result.steps));
}

/// Evaluates, saves and begins or ends the profile, outside of the training
/// time. No step is in flight.
Status Trainer::pauseAfter(int64_t done) {
  Clock::time_point pause = Clock::now();
  if (run.profiler)
    QLORA_RETURN_IF_ERROR(run.profiler->finishAfter(done, isLast(done)));
  evaluationDue = shouldEvaluate(done) && done != evaluatedStep;
  const bool isUsed = evaluationDue || shouldSave(done) || isLast(done);
  if (isUsed)
    QLORA_RETURN_IF_ERROR(switchTo(QLORA_ENTRY_AVERAGE));
  if (evaluationDue && result.stopSignal == 0)
    QLORA_RETURN_IF_ERROR(evaluateAfter(done));
  if (shouldSave(done))
    QLORA_RETURN_IF_ERROR(save(done));
  if (isUsed && !isLast(done))
    QLORA_RETURN_IF_ERROR(switchTo(QLORA_ENTRY_CONTINUE));
  if (run.profiler && !isLast(done))
    QLORA_RETURN_IF_ERROR(run.profiler->startAfter(done));
  log.leaveOut(Clock::now() - pause);
  return Status::ok();
}

/// Submits a step and reads the results of earlier ones. Returns whether a
/// pause follows, for which no step is left in flight.
StatusOr<bool> Trainer::advance(int64_t done) {
  const HostSlice slice(run.profiler, HostWork::kStep);
  QLORA_RETURN_IF_ERROR(submitStep(done - 1));
  result.justEvaluated = false;
  const bool pauses = shouldEvaluate(done) || shouldSave(done) ||
                      isLast(done) ||
                      (run.profiler && run.profiler->isEdge(done));
  while (submitted.size() > (pauses ? 0 : lead()))
    QLORA_RETURN_IF_ERROR(settleStep());
  if (tools.writer)
    tools.writer->poll();
  return pauses;
}

StatusOr<TrainingResult> Trainer::train() {
  if (tools.resume)
    restore(tools.resume->state);
  result.savedStep = result.steps;
  if (evaluationDue)
    QLORA_RETURN_IF_ERROR(evaluateAfter(result.steps));
  if (result.steps < total && !hasStopped())
    QLORA_RETURN_IF_ERROR(switchTo(QLORA_ENTRY_CONTINUE));
  if (run.profiler)
    QLORA_RETURN_IF_ERROR(run.profiler->startAfter(result.steps));
  while (result.steps < total && !hasStopped()) {
    QLORA_ASSIGN_OR_RETURN(const bool pauses, advance(result.steps + 1));
    if (pauses)
      QLORA_RETURN_IF_ERROR(pauseAfter(result.steps));
  }
  result.totals = log.totals();
  result.epoch = run.train->schedule().epochAfter(result.steps, run.perStep());
  result.bestStep = best.step();
  return result;
}

StatusOr<TrainingResult> train(const Run &run, const TrainingTools &tools) {
  return Trainer(run, tools).train();
}

} // namespace qlora
