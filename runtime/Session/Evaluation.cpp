// SPDX-License-Identifier: MIT

// The evaluation loop.

#include "runtime/Session/Evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include <fmt/ranges.h>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Session/AnswerEvaluation.h"
#include "runtime/Watch/StepLog.h"

namespace qlora {

namespace {
/// Sums over this rank's micro-batches, then over all ranks.
struct Sums {
  LossSums losses;
  RowMatches matches;
  bool hasStopped = false;
};
} // namespace

/// Returns whether this rank or, in lockstep, any rank received a stop signal.
static StatusOr<bool> shouldStop(const Run &run) {
  int64_t stopped = stopSignal() != 0;
  if (run.stepShape.inLockstep)
    QLORA_RETURN_IF_ERROR(run.group.sum(std::span(&stopped, 1)));
  return stopped != 0;
}

/// Gathers `correct` for complete sequences from their cp shards.
static Status joinParts(const Run &run, std::vector<int32_t> &correct) {
  if (run.module.contextRanks() == 1)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::vector<int32_t>> parts,
      run.group.collectives(QLORA_GROUP_CP)
          .allGatherValues(std::span<const int32_t>(correct)));
  std::ranges::fill(correct, 0);
  for (const std::vector<int32_t> &part : parts)
    std::ranges::transform(part, correct, correct.begin(), std::plus());
  return Status::ok();
}

static Status addBatch(const Run &run, int64_t number, Sums &all) {
  MicroBatch batch;
  QLORA_RETURN_IF_ERROR(
      run.validation->readInOrder(number, batch, run.stepShape));
  LossSums losses;
  std::vector<int32_t> correct;
  QLORA_RETURN_IF_ERROR(run.program.evaluate(
      batch, run.validation->mostLabelsInOrder(number, run.stepShape), {},
      losses, correct));
  QLORA_RETURN_IF_ERROR(joinParts(run, correct));
  all.losses += losses;
  const RowMatches matches = countRowMatches(batch, correct);
  all.matches.labels += matches.labels;
  all.matches.right += matches.right;
  all.matches.rows += matches.rows;
  all.matches.matched += matches.matched;
  return Status::ok();
}

/// Evaluates micro-batches r, r + N, ... on data-parallel rank r of N. In
/// lockstep, a rank whose micro-batches end earlier runs padding instead.
static StatusOr<Sums> addShare(const Run &run) {
  Sums all;
  ProgressListener listener;
  if (run.metrics)
    listener = run.metrics->progress("evaluating", "batches");
  const int64_t count = run.validation->schedule().countInOrder();
  const int64_t ranks = run.group.dataRanks();
  for (int64_t first = 0; first < count; first += ranks) {
    const int64_t number = first + run.group.dataRank();
    if (number >= count && !run.stepShape.inLockstep)
      break;
    QLORA_ASSIGN_OR_RETURN(all.hasStopped, shouldStop(run));
    if (all.hasStopped)
      break;
    QLORA_RETURN_IF_ERROR(addBatch(run, number, all));
    if (listener)
      listener(static_cast<uint64_t>(std::min(number + ranks, count)),
               static_cast<uint64_t>(count));
  }
  return all;
}

static Status sumOverRanks(RankGroup &group, Sums &all) {
  if (!group.countsRows())
    all.matches = {};
  if (all.losses.isOfSequences() ? !group.countsRows() : !group.countsSums())
    all.losses.values = {};
  int64_t counts[] = {all.matches.labels, all.matches.right, all.matches.rows,
                      all.matches.matched, all.hasStopped};
  QLORA_RETURN_IF_ERROR(group.sum(std::span(all.losses.values)));
  QLORA_RETURN_IF_ERROR(group.sum(std::span(counts)));
  all.matches = {counts[2], counts[3], counts[0], counts[1]};
  all.hasStopped = counts[4] > 0;
  return Status::ok();
}

static StatusOr<std::optional<EvaluationResult>> evaluate(const Run &run) {
  QLORA_ASSIGN_OR_RETURN(Sums all, addShare(run));
  QLORA_RETURN_IF_ERROR(sumOverRanks(run.group, all));
  if (all.hasStopped)
    return std::optional<EvaluationResult>();
  // The validation file was checked to have at least one labelled token.
  const RowMatches &matches = all.matches;
  EvaluationResult result;
  result.sums = all.losses;
  result.loss = all.losses.loss() / all.losses.labels();
  result.perplexity = std::exp((all.losses.loss() - all.losses.routers()) /
                               all.losses.labels());
  result.tokenAccuracy =
      static_cast<double>(matches.right) / static_cast<double>(matches.labels);
  result.rows = matches.rows;
  result.exactMatch =
      static_cast<double>(matches.matched) / static_cast<double>(matches.rows);
  return std::optional(result);
}

/// Formats KTO's mean rewards of desirable and undesirable answers, if any.
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
  if (result.sums.of() == LossSums::Of::kTokens)
    return values.contains("eval_perplexity")
               ? "perplexity " + formatShort(result.perplexity)
               : "";
  if (result.sums.of() == LossSums::Of::kAnswers)
    return rewardsText(values);
  return fmt::format("reward accuracy {:.1f} %, margin {:.4f}",
                     100 * values.at("eval_rewards/accuracies").get<double>(),
                     values.at("eval_rewards/margins").get<double>());
}

using Clock = std::chrono::steady_clock;

static double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Adds an evaluation's metrics of answers to the logged values and text.
static void addAnswers(const Run &run, const EvaluationResult &result,
                       int64_t step, double seconds,
                       nlohmann::ordered_json &values, std::string &text) {
  if (result.ofAnswers.empty())
    return;
  std::vector<std::string> words;
  for (const auto &[name, value] : result.ofAnswers.items()) {
    values["eval_" + name] = value;
    words.push_back(metricText(name, value.get<double>()));
  }
  values["eval_generation_runtime"] = seconds;
  text += fmt::format(
      "\n  answers: {} ({:.1f} s)\n  {}", fmt::join(words, ", "), seconds,
      shownPath(answersFile(run.outputFolder, step)));
}

StatusOr<std::optional<EvaluationResult>>
evaluateAndLog(const Run &run, int64_t step, double epoch,
               const std::string &title) {
  const Clock::time_point start = Clock::now();
  QLORA_ASSIGN_OR_RETURN(auto evaluated, evaluate(run));
  const double seconds = secondsSince(start);
  const Clock::time_point generating = Clock::now();
  if (run.answers && evaluated) {
    QLORA_ASSIGN_OR_RETURN(auto metrics, run.answers->evaluate(run, step));
    if (!metrics)
      return std::optional<EvaluationResult>();
    evaluated->ofAnswers = std::move(*metrics);
  }
  if (!run.metrics || !evaluated)
    return evaluated;
  const EvaluationResult &result = *evaluated;
  nlohmann::ordered_json values = {
      {"step", step},
      {"epoch", epoch},
      {"eval_loss", result.loss},
      {"eval_perplexity", result.perplexity},
      {"eval_token_accuracy", result.tokenAccuracy},
      {"eval_exact_match", result.exactMatch},
      {"eval_rows", result.rows},
      {"eval_runtime", seconds}};
  if (changesTokenLoss(run.options))
    values.erase("eval_perplexity");
  addSums(values, "eval_", result.sums, run.routerFactor());
  const std::string measure = measureOf(values, result);
  std::string text = fmt::format(
      "evaluation {}: loss {:.4f}{}{}\n  token accuracy {:.1f} %{} of {} rows "
      "({:.1f} s)",
      title, result.loss, measure.empty() ? "" : ", ", measure,
      100 * result.tokenAccuracy,
      run.answers
          ? ""
          : fmt::format(", exact match {:.1f} %", 100 * result.exactMatch),
      formatCount(static_cast<uint64_t>(result.rows)), seconds);
  addAnswers(run, result, step, secondsSince(generating), values, text);
  QLORA_RETURN_IF_ERROR(run.metrics->log(values, text));
  return evaluated;
}

} // namespace qlora
