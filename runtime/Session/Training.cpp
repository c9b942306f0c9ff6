// SPDX-License-Identifier: MIT

// The training loop.

#include "runtime/Session/Training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>

#include "runtime/Session/Adapter.h"
#include "runtime/Session/Evaluation.h"
#include "runtime/Session/LearningRate.h"
#include "runtime/Session/StopSignal.h"

namespace qlora {

using Clock = std::chrono::steady_clock;

static double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

namespace {

/// What has happened since the last logged step.
struct Window {
  Clock::time_point start = Clock::now();
  int64_t steps = 0; ///< with labels
  int64_t allSteps = 0;
  int64_t tokens = 0;
  double lossSum = 0;
};

class Trainer {
public:
  Trainer(Run &run, Dump *dump)
      : run(run), dump(dump), options(run.options),
        accumulation(options.integer("gradient_accumulation_steps")),
        total(totalSteps(run)), rate{options.number("learning_rate"),
                                     options.text("lr_scheduler_type"),
                                     LearningRate::warmupOf(
                                         options.integer("warmup_steps"),
                                         options.number("warmup_ratio"), total),
                                     total} {}

  StatusOr<TrainingResult> train();

private:
  qlora_step_block stepBlock(int64_t step) const;
  Status runStep(int64_t step);
  Status accumulateStep(int64_t step, qlora_step_block &block, LossSums &sums);
  Status checkFinite(double value, const char *what, int64_t step) const;
  Status agree();
  Status logStep(int64_t step);
  Status afterStep(int64_t done);
  bool shouldEvaluate(int64_t done) const;

  Run &run;
  Dump *dump;
  const Options &options;
  const int64_t accumulation;
  const int64_t total;
  const LearningRate rate;

  MicroBatch batch;
  int64_t updates = 0;    ///< AdamW's own count: skipped steps do not count
  int64_t stepTokens = 0; ///< of this rank, then of all
  double gradNorm = 0;
  double lossOfAllSteps = 0;
  Clock::time_point start = Clock::now();
  Window window;
  TrainingResult result;
};

} // namespace

int64_t totalSteps(const Run &run) {
  if (!run.train)
    return 0;
  if (int64_t steps = run.options.integer("max_steps"); steps > 0)
    return steps;
  double perEpoch =
      static_cast<double>(run.train->stepsPerEpoch(run.perStep()));
  return static_cast<int64_t>(
      std::ceil(run.options.number("num_train_epochs") * perEpoch));
}

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

Status Trainer::accumulateStep(int64_t step, qlora_step_block &block,
                               LossSums &sums) {
  int64_t ranks = run.group.size();
  stepTokens = 0;
  for (int64_t k = 0; k < accumulation; ++k) {
    int64_t index = k * ranks + run.group.rank();
    run.train->read(step, index, run.perStep(), batch);
    block.micro_batch = static_cast<uint64_t>(step * run.perStep() + index);
    stepTokens += static_cast<int64_t>(batch.segments.size()) -
                  std::count(batch.segments.begin(), batch.segments.end(), 0);
    QLORA_RETURN_IF_ERROR(
        run.program.accumulate(batch, k + 1 == accumulation, block, sums));
  }
  return Status::ok();
}

Status Trainer::checkFinite(double value, const char *what,
                            int64_t step) const {
  if (std::isfinite(value))
    return Status::ok();
  return Status::invalid(
      "the {} of step {} is {}; try a smaller learning_rate (it was {}) or "
      "compute_dtype float32. Nothing was written over",
      what, step + 1, value, rate.at(step));
}

Status Trainer::runStep(int64_t step) {
  qlora_step_block block = stepBlock(step);
  LossSums sums;
  QLORA_RETURN_IF_ERROR(accumulateStep(step, block, sums));
  if (sums.labels == 0) {
    if (run.metrics)
      run.metrics->warn(fmt::format(
          "step {} has no labelled token and is skipped", step + 1));
    return Status::ok();
  }
  double loss = sums.loss / sums.labels;
  QLORA_RETURN_IF_ERROR(checkFinite(loss, "loss", step));
  if (dump && updates == 0) {
    QLORA_RETURN_IF_ERROR(dump->takeGradients(run, sums.labels));
    QLORA_RETURN_IF_ERROR(dump->takeDropout(run, step));
    QLORA_RETURN_IF_ERROR(dump->write());
  }
  QLORA_ASSIGN_OR_RETURN(gradNorm, run.program.update(block));
  QLORA_RETURN_IF_ERROR(checkFinite(gradNorm, "gradient norm", step));
  ++updates;
  ++window.steps;
  window.lossSum += loss;
  lossOfAllSteps += loss;
  return Status::ok();
}

/// Signals reach ranks at different steps; all have to stop at the same one.
Status Trainer::agree() {
  int signal = stopSignal();
  int64_t values[] = {signal == SIGINT, signal == SIGTERM, stepTokens};
  QLORA_RETURN_IF_ERROR(run.group.sum(std::span(values)));
  if (values[0] > 0)
    result.stopSignal = SIGINT;
  if (values[1] > 0)
    result.stopSignal = SIGTERM;
  window.tokens += values[2];
  result.tokens += values[2];
  return Status::ok();
}

Status Trainer::logStep(int64_t step) {
  double seconds = secondsSince(window.start);
  double perStep = seconds / static_cast<double>(window.allSteps);
  double eta = secondsSince(start) / static_cast<double>(step + 1) *
               static_cast<double>(total - step - 1);
  Window last = std::exchange(window, Window());
  if (!run.metrics || last.steps == 0)
    return Status::ok();
  StepReport report;
  report.step = step + 1;
  report.totalSteps = total;
  report.loss = last.lossSum / static_cast<double>(last.steps);
  report.gradNorm = gradNorm;
  report.learningRate = rate.at(step);
  report.stepSeconds = perStep;
  report.tokensPerSecond = static_cast<double>(last.tokens) / seconds;
  report.memoryBytes = run.memoryBytes();
  report.plannedBytes = run.plannedBytes();
  report.etaSeconds = eta;
  nlohmann::ordered_json values = {
      {"step", report.step},
      {"loss", report.loss},
      {"grad_norm", report.gradNorm},
      {"learning_rate", report.learningRate},
      {"epoch", run.train->epochAfter(step + 1, run.perStep())},
      {"step_time", report.stepSeconds},
      {"tokens_per_second", report.tokensPerSecond},
      {"num_input_tokens_seen", result.tokens},
      {"memory_bytes", report.memoryBytes}};
  return run.metrics->log(values, progressLine(report));
}

bool Trainer::shouldEvaluate(int64_t done) const {
  if (!run.validation)
    return false;
  std::string strategy = options.text("eval_strategy");
  int64_t every = options.integer("eval_steps");
  if (strategy == "epoch")
    every = run.train->stepsPerEpoch(run.perStep());
  else if (strategy == "steps" && every == 0)
    every = options.integer("logging_steps");
  return every > 0 && done % every == 0;
}

Status Trainer::afterStep(int64_t done) {
  bool isLast = done == total || result.stopSignal != 0;
  if (done % options.integer("logging_steps") == 0 || isLast)
    QLORA_RETURN_IF_ERROR(logStep(done - 1));
  if (run.metrics && !isLast)
    run.metrics->showBar(done, total,
                         secondsSince(start) / static_cast<double>(done) *
                             static_cast<double>(total - done));
  Clock::time_point pause = Clock::now();
  result.justEvaluated = shouldEvaluate(done) && result.stopSignal == 0;
  if (result.justEvaluated)
    QLORA_RETURN_IF_ERROR(
        evaluateAndLog(run, done, run.train->epochAfter(done, run.perStep()),
                       fmt::format("evaluation after step {}", done))
            .status());
  int64_t every = options.integer("save_steps");
  if (every > 0 && done % every == 0 && !isLast)
    QLORA_RETURN_IF_ERROR(saveAdapter(
        run, fmt::format("{}/checkpoint-{}", run.outputFolder, done)));
  // Evaluating and saving are not training time.
  Clock::duration paused = Clock::now() - pause;
  start += paused;
  window.start += paused;
  return Status::ok();
}

StatusOr<TrainingResult> Trainer::train() {
  for (int64_t step = 0; step < total && result.stopSignal == 0; ++step) {
    QLORA_RETURN_IF_ERROR(runStep(step));
    QLORA_RETURN_IF_ERROR(agree());
    ++window.allSteps;
    result.steps = step + 1;
    QLORA_RETURN_IF_ERROR(afterStep(step + 1));
  }
  result.seconds = secondsSince(start);
  result.epoch = run.train->epochAfter(result.steps, run.perStep());
  result.meanLoss =
      updates > 0 ? lossOfAllSteps / static_cast<double>(updates) : 0;
  return result;
}

StatusOr<TrainingResult> train(Run &run, Dump *dump) {
  return Trainer(run, dump).train();
}

Status saveAdapter(Run &run, const std::string &folder) {
  if (run.group.rank() != 0)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(std::vector<uint8_t> trained, run.trainedBytes());
  return writeAdapter(run.module, run.options, trained, folder);
}

} // namespace qlora
