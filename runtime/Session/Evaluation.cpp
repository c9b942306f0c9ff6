// SPDX-License-Identifier: MIT

// The evaluation loop.

#include "runtime/Session/Evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Watch/StepLog.h"

namespace qlora {

static StatusOr<std::optional<EvaluationResult>> evaluate(const Run &run) {
  LossSums all;
  int64_t counts[5] = {}; // labels, correct, rows, matched rows; stopped
  MicroBatch batch;
  std::vector<int32_t> correct;
  qlora_step_block step = {};
  ProgressListener listener;
  if (run.metrics)
    listener = run.metrics->progress("evaluating", "batches");
  const int64_t count = run.validation->schedule().countInOrder();
  for (int64_t number = run.group.rank(); number < count;
       number += run.group.size()) {
    if (stopSignal() != 0) {
      counts[4] = 1;
      break;
    }
    QLORA_RETURN_IF_ERROR(run.validation->readInOrder(number, batch));
    LossSums sums;
    QLORA_RETURN_IF_ERROR(run.program.evaluate(batch, step, sums, correct));
    all += sums;
    RowMatches matches = countRowMatches(batch, correct);
    counts[0] += matches.labels;
    counts[1] += matches.right;
    counts[2] += matches.rows;
    counts[3] += matches.matched;
    if (listener)
      listener(static_cast<uint64_t>(
                   std::min(number + run.group.size(), count)),
               static_cast<uint64_t>(count));
  }
  QLORA_RETURN_IF_ERROR(run.group.sum(std::span(&all.loss, 1)));
  QLORA_RETURN_IF_ERROR(run.group.sum(std::span(&all.labels, 1)));
  QLORA_RETURN_IF_ERROR(run.group.sum(std::span(&all.routers, 1)));
  QLORA_RETURN_IF_ERROR(run.group.sum(std::span(all.preferences)));
  QLORA_RETURN_IF_ERROR(run.group.sum(std::span(counts)));
  if (counts[4] > 0)
    return std::optional<EvaluationResult>();
  // The file was checked to have at least one label.
  EvaluationResult result;
  result.sums = all;
  result.loss = all.loss / all.labels;
  result.perplexity = std::exp((all.loss - all.routers) / all.labels);
  result.tokenAccuracy =
      static_cast<double>(counts[1]) / static_cast<double>(counts[0]);
  result.rows = counts[2];
  result.argmaxMatch =
      static_cast<double>(counts[3]) / static_cast<double>(counts[2]);
  return std::optional(result);
}

/// Of either kind of answers, where there are any.
static std::string rewardsText(const nlohmann::ordered_json &values) {
  std::vector<std::string> rewards;
  for (const auto &[name, kind] :
       {std::pair("eval_rewards/chosen", "desirable"),
        {"eval_rewards/rejected", "undesirable"}})
    if (const auto found = values.find(name); found != values.end())
      rewards.push_back(fmt::format("{:.4f} {}", found->get<double>(), kind));
  return fmt::format("rewards {}", fmt::join(rewards, ", "));
}

std::string measureOf(const nlohmann::ordered_json &values,
                      const EvaluationResult &result) {
  if (result.sums.of == LossSums::Of::kTokens)
    return "perplexity " + formatShort(result.perplexity);
  if (result.sums.of == LossSums::Of::kAnswers)
    return rewardsText(values);
  return fmt::format("{:.1f} % of pairs right, margin {:.4f}",
                     100 * values.at("eval_rewards/accuracies").get<double>(),
                     values.at("eval_rewards/margins").get<double>());
}

StatusOr<std::optional<EvaluationResult>>
evaluateAndLog(const Run &run, int64_t step, double epoch,
               const std::string &title) {
  auto start = std::chrono::steady_clock::now();
  QLORA_ASSIGN_OR_RETURN(const auto evaluated, evaluate(run));
  double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  if (!run.metrics || !evaluated)
    return evaluated;
  const EvaluationResult &result = *evaluated;
  nlohmann::ordered_json values = {
      {"step", step},
      {"epoch", epoch},
      {"eval_loss", result.loss},
      {"eval_perplexity", result.perplexity},
      {"eval_token_accuracy", result.tokenAccuracy},
      {"eval_argmax_match", result.argmaxMatch},
      {"eval_rows", result.rows},
      {"eval_runtime", seconds}};
  addSums(values, "eval_", result.sums, run.routerFactor());
  const std::string text = fmt::format(
      "evaluation {}: loss {:.4f}, {}\n"
      "  right: {:.1f} % of tokens, all tokens in {:.1f} % of {} rows ({:.1f} "
      "s)",
      title, result.loss, measureOf(values, result),
      100 * result.tokenAccuracy, 100 * result.argmaxMatch,
      formatCount(static_cast<uint64_t>(result.rows)), seconds);
  QLORA_RETURN_IF_ERROR(run.metrics->log(values, text));
  return evaluated;
}

} // namespace qlora
