// SPDX-License-Identifier: MIT

// The training loop. The host submits a step whole and reads the results of an
// earlier one (Device::lead), so that a device with queues of its own is never
// without work. What decides about a step is known to the host before: labels
// are counted in the data.

#include "runtime/Session/Training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <deque>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Session/Adapter.h"
#include "runtime/Session/Evaluation.h"
#include "runtime/Session/LearningRate.h"
#include "runtime/Watch/Profiler.h"
#include "runtime/Watch/StepLog.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

namespace {

/// A step that the device may still be working on.
struct SubmittedStep {
  int64_t step = 0;
  int64_t tokens = 0; ///< of all ranks
  int64_t labels = 0; ///< of all ranks; none: there was no update
};

class Trainer {
public:
  Trainer(const Run &run, Dump *dump)
      : run(run), dump(dump), options(run.options),
        total(run.totalSteps),
        rate{options.number("learning_rate"), options.text("lr_scheduler_type"),
             LearningRate::warmupOf(options.integer("warmup_steps"),
                                    options.number("warmup_ratio"), total),
             total},
        log({run.metrics, run.profiler, run.train->schedule(), run.memory,
             run.perStep(), total, options.integer("logging_steps")},
            Divergence(options.recordedFact("vocab_size").get<double>(),
                       options.number("learning_rate"))) {}

  StatusOr<TrainingResult> train();

private:
  qlora_step_block stepBlock(int64_t step) const;
  Status submitStep(int64_t step);
  Status readBatch(int64_t step, int64_t index);
  Status accumulateStep(qlora_step_block &block, SubmittedStep &own);
  Status agree(SubmittedStep &submitted);
  Status dumpFirst(const SubmittedStep &submitted);
  Status settleStep();
  Status settleResults(SettledStep &settled, bool hasLabels);
  Status checkFinite(double value, const char *what, int64_t step) const;
  StatusOr<bool> advance(int64_t done);
  Status pauseAfter(int64_t done);
  bool shouldEvaluate(int64_t done) const;
  bool shouldSave(int64_t done) const;
  void saveOnTheWay(int64_t done);
  bool isLast(int64_t done) const {
    return done == total || result.stopSignal != 0;
  }

  const Run &run;
  Dump *dump;
  const Options &options;
  const int64_t total;
  const LearningRate rate;

  MicroBatch batch;
  std::deque<SubmittedStep> submitted; ///< not settled, oldest first
  int64_t updates = 0; ///< AdamW's own count: skipped steps do not count
  StepLog log;
  TrainingResult result;
};

} // namespace

qlora_step_block Trainer::stepBlock(int64_t step) const {
  double beta1 = options.number("adam_beta1");
  double beta2 = options.number("adam_beta2");
  double count = static_cast<double>(updates + 1);
  qlora_step_block block = {};
  block.learning_rate = static_cast<float>(rate.at(step));
  block.beta1 = static_cast<float>(beta1);
  block.beta2 = static_cast<float>(beta2);
  block.epsilon = static_cast<float>(options.number("adam_epsilon"));
  block.weight_decay = static_cast<float>(options.number("weight_decay"));
  block.max_grad_norm = static_cast<float>(options.number("max_grad_norm"));
  block.bias_correction1 = static_cast<float>(1 - std::pow(beta1, count));
  block.bias_correction2_sqrt =
      static_cast<float>(std::sqrt(1 - std::pow(beta2, count)));
  block.seed = static_cast<uint64_t>(options.integer("seed"));
  block.step = static_cast<uint64_t>(step);
  return block;
}

Status Trainer::readBatch(int64_t step, int64_t index) {
  const HostSlice slice(run.profiler, HostWork::kData);
  return run.train->read(step, index, run.stepShape, batch);
}

Status Trainer::accumulateStep(qlora_step_block &block, SubmittedStep &own) {
  int64_t ranks = run.group.size();
  const int64_t count =
      run.train->schedule().microBatches(own.step, run.stepShape);
  for (int64_t k = 0; k < count; ++k) {
    int64_t index = k * ranks + run.group.rank();
    QLORA_RETURN_IF_ERROR(readBatch(own.step, index));
    block.micro_batch = static_cast<uint64_t>(own.step * run.perStep() + index);
    own.tokens += static_cast<int64_t>(batch.segments.size()) -
                  std::count(batch.segments.begin(), batch.segments.end(), 0);
    own.labels += batch.labelCount();
    const HostSlice slice(run.profiler, HostWork::kAccumulate);
    QLORA_RETURN_IF_ERROR(
        k + 1 < count
            ? run.program.accumulate(batch, block)
            : run.program.accumulateLast(
                  batch, run.train->mostLabels(own.step, k, run.stepShape),
                  block));
  }
  return Status::ok();
}

Status Trainer::checkFinite(double value, const char *what,
                            int64_t step) const {
  if (std::isfinite(value))
    return Status::ok();
  return Status::invalid(
      "the {} of step {} is {}; try a smaller --learning-rate (it was {}), or "
      "compile with --compute-dtype float32. No adapter was written over",
      what, step + 1, value, formatShort(rate.at(step)));
}

/// Sums over ranks. Signals reach ranks at different steps; all have to stop
/// at the same one.
Status Trainer::agree(SubmittedStep &step) {
  const HostSlice slice(run.profiler, HostWork::kAgree);
  int signal = stopSignal();
  int64_t values[] = {signal == SIGINT, signal == SIGTERM, step.tokens,
                      step.labels};
  QLORA_RETURN_IF_ERROR(run.group.sum(std::span(values)));
  if (values[0] > 0)
    result.stopSignal = SIGINT;
  if (values[1] > 0)
    result.stopSignal = SIGTERM;
  step.tokens = values[2];
  step.labels = values[3];
  return Status::ok();
}

Status Trainer::dumpFirst(const SubmittedStep &first) {
  QLORA_RETURN_IF_ERROR(
      dump->takeGradients(run, static_cast<double>(first.labels)));
  QLORA_RETURN_IF_ERROR(dump->takeDropout(run, first.step));
  return dump->write();
}

Status Trainer::submitStep(int64_t step) {
  qlora_step_block block = stepBlock(step);
  SubmittedStep submitting{step};
  QLORA_RETURN_IF_ERROR(accumulateStep(block, submitting));
  QLORA_RETURN_IF_ERROR(agree(submitting));
  submitted.push_back(submitting);
  result.steps = step + 1;
  if (submitting.labels == 0)
    return Status::ok();
  if (dump && updates == 0)
    QLORA_RETURN_IF_ERROR(dumpFirst(submitting));
  ++updates;
  const HostSlice slice(run.profiler, HostWork::kUpdate);
  return run.program.update(block);
}

Status Trainer::settleResults(SettledStep &settled, bool hasLabels) {
  const HostSlice slice(run.profiler, HostWork::kResults);
  QLORA_ASSIGN_OR_RETURN(const LossSums sums, run.program.finishSums());
  settled.hasUpdate = hasLabels;
  if (!hasLabels) {
    if (run.metrics)
      run.metrics->warn(
          fmt::format("step {} has no labelled token and is skipped",
                      settled.step + 1));
    return Status::ok();
  }
  settled.loss = sums.loss / sums.labels;
  QLORA_ASSIGN_OR_RETURN(settled.gradNorm, run.program.finishNorm());
  QLORA_RETURN_IF_ERROR(checkFinite(settled.loss, "loss", settled.step));
  return checkFinite(settled.gradNorm, "gradient norm", settled.step);
}

/// The results of the oldest submitted step.
Status Trainer::settleStep() {
  const SubmittedStep oldest = submitted.front();
  submitted.pop_front();
  SettledStep settled{oldest.step, oldest.tokens};
  settled.learningRate = rate.at(oldest.step);
  QLORA_RETURN_IF_ERROR(settleResults(settled, oldest.labels > 0));
  return log.add(settled, submitted.empty() && isLast(oldest.step + 1));
}

bool Trainer::shouldEvaluate(int64_t done) const {
  if (!run.validation || result.stopSignal != 0)
    return false;
  std::string strategy = options.text("eval_strategy");
  int64_t every = options.integer("eval_steps");
  if (strategy == "epoch")
    every = run.train->schedule().stepsPerEpoch(run.perStep());
  else if (strategy == "steps" && every == 0)
    every = options.integer("logging_steps");
  return every > 0 && done % every == 0;
}

bool Trainer::shouldSave(int64_t done) const {
  int64_t every = options.integer("save_steps");
  return every > 0 && done % every == 0 && !isLast(done);
}

static Status saveAdapter(const Run &run, const std::string &folder) {
  if (run.group.rank() != 0)
    return Status::ok();
  std::vector<uint8_t> copy;
  QLORA_ASSIGN_OR_RETURN(const auto trained,
                         trainedBytes(run.module, run.device, copy));
  return writeAdapter(run.module, run.options, trained, folder);
}

/// The training goes on without it: the last adapter has its space.
void Trainer::saveOnTheWay(int64_t done) {
  const Status status =
      saveAdapter(run, fmt::format("{}/checkpoint-{}", run.outputFolder, done));
  if (!status.isOk())
    run.metrics->warn(fmt::format("the adapter after step {} is not saved: {}",
                                  done, status.message()));
}

/// Evaluates, saves and ends or begins the profile; nothing of it is training
/// time. No step is submitted.
Status Trainer::pauseAfter(int64_t done) {
  Clock::time_point pause = Clock::now();
  if (run.profiler)
    QLORA_RETURN_IF_ERROR(run.profiler->finishAfter(done, isLast(done)));
  result.justEvaluated = shouldEvaluate(done);
  if (result.justEvaluated)
    QLORA_RETURN_IF_ERROR(
        evaluateAndLog(run, done, run.train->schedule().epochAfter(done, run.perStep()),
                       fmt::format("after step {}", done))
            .status());
  if (shouldSave(done))
    saveOnTheWay(done);
  if (run.profiler && !isLast(done))
    QLORA_RETURN_IF_ERROR(run.profiler->startAfter(done));
  log.leaveOut(Clock::now() - pause);
  return Status::ok();
}

/// Submits a step and settles those before it; whether a pause follows, for
/// which none may be in flight.
StatusOr<bool> Trainer::advance(int64_t done) {
  const HostSlice slice(run.profiler, HostWork::kStep);
  QLORA_RETURN_IF_ERROR(submitStep(done - 1));
  result.justEvaluated = false;
  const bool pauses = shouldEvaluate(done) || shouldSave(done) ||
                      isLast(done) ||
                      (run.profiler && run.profiler->isEdge(done));
  const size_t lead = static_cast<size_t>(run.device.lead());
  while (submitted.size() > (pauses ? 0 : lead))
    QLORA_RETURN_IF_ERROR(settleStep());
  return pauses;
}

StatusOr<TrainingResult> Trainer::train() {
  if (run.profiler)
    QLORA_RETURN_IF_ERROR(run.profiler->startAfter(0));
  for (int64_t done = 1; done <= total && result.stopSignal == 0; ++done) {
    QLORA_ASSIGN_OR_RETURN(const bool pauses, advance(done));
    if (pauses)
      QLORA_RETURN_IF_ERROR(pauseAfter(done));
  }
  result.totals = log.totals();
  result.epoch = run.train->schedule().epochAfter(result.steps, run.perStep());
  return result;
}

StatusOr<TrainingResult> train(const Run &run, Dump *dump) {
  return Trainer(run, dump).train();
}

} // namespace qlora
