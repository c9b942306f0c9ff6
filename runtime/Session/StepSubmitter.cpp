// SPDX-License-Identifier: MIT

// Submits micro-batches, the exchange between ranks, and the update.

#include "runtime/Session/StepSubmitter.h"

#include <algorithm>
#include <cmath>

#include "runtime/Base/StopSignal.h"
#include "runtime/Session/GradientTree.h"
#include "runtime/Watch/Profiler.h"

namespace qlora {

StepSubmitter::StepSubmitter(const Run &run, const RunExtras &extras)
    : run(run), extras(extras), options(run.options),
      rate(options, run.totalSteps) {}

/// Returns the weight of update `count` (from 1) in the optimizer's running
/// average. Adafactor: transformers' decay_rate. Schedule-free AdamW: the
/// squared learning rate, divided by the sum of all squares so far.
static double weightOf(const std::string &optimizer, double count,
                       double warmup) {
  if (optimizer == "adafactor")
    return std::pow(count, -0.8);
  if (optimizer != "schedule_free_adamw")
    return 0;
  const double risen = std::min(count, warmup);
  const double sum =
      warmup > 0 ? risen * (risen + 1) * (2 * risen + 1) / (6 * warmup * warmup)
                 : 0;
  const double factor = count < warmup ? count / warmup : 1;
  return factor * factor / (sum + std::max(count - warmup, 0.0));
}

double StepSubmitter::ownFactor() const {
  const auto warmup = static_cast<double>(rate.warmupSteps());
  const auto count = static_cast<double>(updates + 1);
  return options.text("optim") == "schedule_free_adamw" && count < warmup
             ? count / warmup
             : 1;
}

qlora_step_block StepSubmitter::block(int64_t step) const {
  double beta1 = options.number("adam_beta1");
  double beta2 = options.number("adam_beta2");
  double count = static_cast<double>(updates + 1);
  qlora_step_block block = {};
  block.learning_rate = static_cast<float>(rate.at(step) * ownFactor());
  block.beta1 = static_cast<float>(beta1);
  block.beta2 = static_cast<float>(beta2);
  block.epsilon = static_cast<float>(options.number("adam_epsilon"));
  block.weight_decay = static_cast<float>(options.number("weight_decay"));
  block.max_grad_norm = static_cast<float>(options.number("max_grad_norm"));
  block.bias_correction1 = static_cast<float>(1 - std::pow(beta1, count));
  block.bias_correction2_sqrt =
      static_cast<float>(std::sqrt(1 - std::pow(beta2, count)));
  block.one_minus_beta1 = static_cast<float>(1 - beta1);
  block.one_minus_beta2 = static_cast<float>(1 - beta2);
  block.update = static_cast<float>(count);
  block.average = static_cast<float>(weightOf(
      options.text("optim"), count, static_cast<double>(rate.warmupSteps())));
  if (run.program.hasRouterLoss())
    block.mean_labels = static_cast<float>(
        run.train->meanLabels(step, run.stepShape));
  block.seed = static_cast<uint64_t>(options.integer("seed"));
  block.step = static_cast<uint64_t>(step);
  return block;
}

Status StepSubmitter::readBatch(int64_t step, int64_t index) {
  const HostSlice slice(run.profiler, HostWork::kData);
  return run.train->read(step, index, run.stepShape, batch);
}

/// Reads a micro-batch of this rank and counts its tokens and labels.
Status StepSubmitter::readOwn(int64_t index, qlora_step_block &block,
                              SubmittedStep &own) {
  QLORA_RETURN_IF_ERROR(readBatch(own.step, index));
  block.micro_batch = static_cast<uint64_t>(own.step * run.perStep() + index);
  own.tokens += static_cast<int64_t>(batch.segments.size()) -
                std::count(batch.segments.begin(), batch.segments.end(), 0);
  own.labels += batch.labelCount();
  return Status::ok();
}

/// Accumulates with a GradientTree, which sums over ranks after the last turn.
Status StepSubmitter::accumulateAsTree(qlora_step_block &block,
                                       SubmittedStep &own) {
  const MicroBatchAssignment deal = run.assignmentOf(own.step);
  const int64_t rank = run.group.dataRank(), count = deal.size(rank);
  GradientTree tree(run.stepShape.accumulation, run.module, run.device,
                    run.group);
  for (const int64_t k : turnsOf(run.stepShape.accumulation)) {
    own.isCut |= own.tokens > 0 && stopSignal() != 0;
    if (k < count && !own.isCut) {
      QLORA_RETURN_IF_ERROR(readOwn(deal.number(rank, k), block, own));
      const HostSlice slice(run.profiler, HostWork::kAccumulate);
      QLORA_RETURN_IF_ERROR(run.program.accumulate(batch, std::nullopt, block));
    }
    const HostSlice slice(run.profiler, HostWork::kAccumulate);
    QLORA_RETURN_IF_ERROR(tree.endTurn());
  }
  const HostSlice slice(run.profiler, HostWork::kAccumulate);
  QLORA_RETURN_IF_ERROR(tree.finish());
  return run.program.readSums(batch);
}

Status StepSubmitter::accumulate(qlora_step_block &block, SubmittedStep &own) {
  const MicroBatchAssignment deal = run.assignmentOf(own.step);
  const int64_t rank = run.group.dataRank(), count = deal.size(rank);
  for (int64_t k = 0; k < count; ++k) {
    // The other ranks wait in the last micro-batch's collectives, so do not
    // skip that micro-batch. In lockstep every micro-batch has collectives.
    if (k + 1 < count && stopSignal() != 0 && !run.stepShape.inLockstep) {
      own.isCut = true;
      k = count - 1;
    }
    QLORA_RETURN_IF_ERROR(readOwn(deal.number(rank, k), block, own));
    const HostSlice slice(run.profiler, HostWork::kAccumulate);
    QLORA_RETURN_IF_ERROR(
        k + 1 < count
            ? run.program.accumulate(
                  batch, run.train->mostLabels(own.step, k, run.stepShape),
                  block)
            : run.program.accumulateLast(
                  batch, run.train->mostLabelsOfLast(own.step, run.stepShape),
                  block));
  }
  return Status::ok();
}

StatusOr<SubmittedStep> StepSubmitter::submit(int64_t step,
                                              SignalRequests &requests) {
  qlora_step_block block = this->block(step);
  SubmittedStep submitted{step};
  QLORA_RETURN_IF_ERROR(run.stepShape.assignsAsOne
                            ? accumulateAsTree(block, submitted)
                            : accumulate(block, submitted));
  QLORA_RETURN_IF_ERROR(agreeOnStep(run, submitted, requests));
  if (submitted.isCut || submitted.labels == 0)
    return submitted;
  if (updates == 0)
    for (const auto &extra : extras)
      QLORA_RETURN_IF_ERROR(extra->firstGradients(run, step));
  ++updates;
  const HostSlice slice(run.profiler, HostWork::kUpdate);
  QLORA_RETURN_IF_ERROR(run.program.update(block));
  return submitted;
}

} // namespace qlora
