// SPDX-License-Identifier: MIT

// Averages over the steps since the last logged line, and checks them.

#include "runtime/Watch/StepLog.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/Base/Amounts.h"
#include "runtime/Ranks/Heartbeat.h"

namespace qlora {

/// Training has diverged if kInARow losses are above kNearlyGuessing, after a
/// loss below kWellBelow. The earlier low loss is required because an untrained
/// model starts with the loss of random guessing, ln(vocabulary size). Both
/// thresholds are multiples of that loss.
static constexpr double kNearlyGuessing = 0.95, kWellBelow = 0.8;
static constexpr int kInARow = 2;

Divergence::Divergence(double vocabSize, double learningRate)
    : guessing(std::log(std::max(vocabSize, 2.0))),
      learningRate(learningRate) {}

std::string Divergence::check(const StepReport &report) {
  if (report.gradNorm == 0 && !saidZero) {
    saidZero = true;
    return fmt::format(
        "the gradient of step {} is 0: training no longer learns. Fix: stop, "
        "and start again with a smaller --learning-rate (it is {})",
        report.step, formatShort(learningRate));
  }
  inARow = report.loss >= kNearlyGuessing * guessing ? inARow + 1 : 0;
  best = std::min(best, report.loss);
  if (inARow < kInARow || best > kWellBelow * guessing || saidGuessing)
    return "";
  saidGuessing = true;
  return fmt::format("training has diverged: the loss was {:.4f} and is now "
                     "{:.4f}, as for random guessing ({:.4f}). Fix: stop, and "
                     "start again with a smaller --learning-rate (it is {})",
                     best, report.loss, guessing, formatShort(learningRate));
}

/// Returns null for infinity, which JSON lacks.
static nlohmann::ordered_json finiteOrNull(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
}

nlohmann::ordered_json Divergence::state() const {
  return {{"best", finiteOrNull(best)},
          {"in_a_row", inARow},
          {"said_zero", saidZero},
          {"said_guessing", saidGuessing}};
}

void Divergence::restore(const nlohmann::ordered_json &state) {
  if (!state.at("best").is_null())
    best = state.at("best");
  inARow = state.at("in_a_row");
  saidZero = state.at("said_zero");
  saidGuessing = state.at("said_guessing");
}

static double secondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

double StepLog::takeWaits() {
  const double waits =
      run.device.gauges().exposedCommunication().value_or(std::nan(""));
  return waits - std::exchange(waitsBefore, waits);
}

Status StepLog::add(const SettledStep &step, bool isDue, bool isEnd) {
  ++window.steps;
  window.waits += takeWaits();
  window.tokens += step.tokens;
  tokens += step.tokens;
  if (step.hasUpdate) {
    ++window.updates;
    window.lossSum += step.loss;
    window.sums += step.sums;
    ++updates;
    lossSum += step.loss;
    last = step;
  }
  last.step = step.step;
  last.learningRate = step.learningRate;
  if (isDue)
    QLORA_RETURN_IF_ERROR(log());
  if (!isEnd && run.metrics)
    run.metrics->showBar({"training", static_cast<uint64_t>(step.step + 1),
                          static_cast<uint64_t>(run.totalSteps),
                          secondsSince(start), /*isBytes=*/false, "steps"});
  return Status::ok();
}

namespace {
/// Readings of a rank. Sent as bytes, so without pointers. NaN: unknown.
struct RankReadings {
  double memoryBytes, utilization, watts, stepSeconds;
};
} // namespace

/// Adds a list with a value per rank (null: unknown), if any rank has a value.
static void addOfRanks(nlohmann::ordered_json &values, const char *name,
                       const std::vector<std::vector<RankReadings>> &ranks,
                       double RankReadings::*member) {
  auto list = nlohmann::ordered_json::array();
  bool hasAny = false;
  for (const std::vector<RankReadings> &rank : ranks) {
    list.push_back(finiteOrNull(rank.at(0).*member));
    hasAny |= !list.back().is_null();
  }
  if (hasAny)
    values[name] = std::move(list);
}

StatusOr<nlohmann::ordered_json> StepLog::readings(const Window &logged,
                                                   double seconds) {
  const GpuReadings gpu = run.device.gauges().readings();
  const double unknown = std::nan("");
  const uint64_t memory = run.memory.now();
  const RankReadings mine{
      static_cast<double>(memory), gpu.utilization.value_or(unknown),
      gpu.watts.value_or(unknown),
      (seconds - logged.waits) / static_cast<double>(logged.steps)};
  const auto before = Clock::now();
  QLORA_ASSIGN_OR_RETURN(const auto ranks,
                         run.ranks.allGatherValues(std::span(&mine, 1)));
  window.waits += secondsSince(before);
  nlohmann::ordered_json values = {{"memory_bytes", memory}};
  if (ranks.size() > 1) {
    addOfRanks(values, "rank_memory_bytes", ranks, &RankReadings::memoryBytes);
    addOfRanks(values, "rank_step_time", ranks, &RankReadings::stepSeconds);
  }
  addOfRanks(values, "rank_gpu_utilization", ranks, &RankReadings::utilization);
  addOfRanks(values, "rank_gpu_power_watts", ranks, &RankReadings::watts);
  return values;
}

/// Warns of a straggler if all ranks have times. All ranks call it.
Status StepLog::nameStraggler(const nlohmann::ordered_json &values) {
  const auto times = values.find("rank_step_time");
  if (!run.hasEqualRanks || times == values.end() ||
      std::ranges::count(*times, nullptr) > 0)
    return Status::ok();
  if (!stragglers) {
    QLORA_ASSIGN_OR_RETURN(std::vector<std::string> hosts,
                           run.ranks.allGather(hostName()));
    stragglers.emplace(std::move(hosts), run.every, run.mayAssign);
  }
  const std::string found =
      stragglers->check(times->get<std::vector<double>>());
  if (run.metrics && !found.empty())
    run.metrics->warn(found);
  return Status::ok();
}

static void addPairs(nlohmann::ordered_json &values, const std::string &prefix,
                     const LossSums &sums) {
  const auto mean = [&](qlora_binding_kind kind) {
    return sums[kind] / sums.labels();
  };
  const double chosen = mean(QLORA_RESULT_CHOSEN_REWARDS);
  const double rejected = mean(QLORA_RESULT_REJECTED_REWARDS);
  values[prefix + "rewards/chosen"] = chosen;
  values[prefix + "rewards/rejected"] = rejected;
  values[prefix + "rewards/accuracies"] = mean(QLORA_RESULT_RIGHT_PAIRS);
  values[prefix + "rewards/margins"] = chosen - rejected;
  values[prefix + "logps/chosen"] = mean(QLORA_RESULT_CHOSEN_LOGPS);
  values[prefix + "logps/rejected"] = mean(QLORA_RESULT_REJECTED_LOGPS);
  // ORPOTrainer: mean of (logp_c - logp_r) - (log1p(-exp(logp_c)) -
  // log1p(-exp(logp_r))), with mean log-probabilities per token.
  if (sums.has(QLORA_RESULT_LOG_ODDS))
    values[prefix + "log_odds_chosen"] = mean(QLORA_RESULT_LOG_ODDS);
  // The loss is nll_loss - beta * log_odds_ratio, as in ORPOTrainer.
  if (sums.has(QLORA_RESULT_CHOSEN_LOSS))
    values[prefix + "nll_loss"] = mean(QLORA_RESULT_CHOSEN_LOSS);
  if (sums.has(QLORA_RESULT_ODDS_LOSS))
    values[prefix + "log_odds_ratio"] = -mean(QLORA_RESULT_ODDS_LOSS);
}

/// Adds means over chosen and over rejected answers, if any exist.
static void addAnswers(nlohmann::ordered_json &values,
                       const std::string &prefix, const LossSums &sums) {
  const double chosen = sums[QLORA_RESULT_CHOSEN_COUNT];
  const double rejected = sums.labels() - chosen;
  if (chosen > 0) {
    values[prefix + "rewards/chosen"] =
        sums[QLORA_RESULT_CHOSEN_REWARDS] / chosen;
    values[prefix + "logps/chosen"] = sums[QLORA_RESULT_CHOSEN_LOGPS] / chosen;
  }
  if (rejected > 0) {
    values[prefix + "rewards/rejected"] =
        sums[QLORA_RESULT_REJECTED_REWARDS] / rejected;
    values[prefix + "logps/rejected"] =
        sums[QLORA_RESULT_REJECTED_LOGPS] / rejected;
  }
  if (chosen > 0 && rejected > 0)
    values[prefix + "rewards/margins"] =
        sums[QLORA_RESULT_CHOSEN_REWARDS] / chosen -
        sums[QLORA_RESULT_REJECTED_REWARDS] / rejected;
  values[prefix + "kl"] = sums[QLORA_RESULT_DIVERGENCE] / sums.labels();
  values[prefix + "count/chosen"] = chosen;
  values[prefix + "count/rejected"] = rejected;
}

void addSums(nlohmann::ordered_json &values, const std::string &prefix,
             const LossSums &sums, double routerFactor) {
  if (routerFactor != 0)
    values[prefix + "aux_loss"] = sums.routers() / sums.labels() / routerFactor;
  if (sums.of() == LossSums::Of::kPairs)
    addPairs(values, prefix, sums);
  if (sums.of() == LossSums::Of::kAnswers)
    addAnswers(values, prefix, sums);
}

/// Returns the logged means of rewards, if the objective has rewards.
static std::optional<RewardReport>
rewardsOf(const nlohmann::ordered_json &values, const LossSums &sums) {
  if (sums.of() == LossSums::Of::kTokens)
    return std::nullopt;
  const double unknown = std::nan("");
  return RewardReport{values.value("rewards/accuracies", unknown),
                      values.value("rewards/margins", unknown)};
}

Status StepLog::log() {
  const HostSlice slice(run.profiler, HostWork::kLog);
  const double seconds = secondsSince(window.start);
  const Window logged = std::exchange(window, Window());
  if (logged.updates == 0)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const auto machines, readings(logged, seconds));
  QLORA_RETURN_IF_ERROR(nameStraggler(machines));
  if (!run.metrics)
    return Status::ok();
  StepReport report;
  report.step = last.step + 1;
  report.totalSteps = run.totalSteps;
  report.epoch = run.schedule.epochAfter(report.step, run.perStep);
  report.loss = logged.lossSum / static_cast<double>(logged.updates);
  report.gradNorm = last.gradNorm;
  report.learningRate = last.learningRate;
  report.stepSeconds = seconds / static_cast<double>(logged.steps);
  report.tokensPerSecond = static_cast<double>(logged.tokens) / seconds;
  report.etaSeconds = secondsSince(start) /
                      static_cast<double>(report.step - firstStep) *
                      static_cast<double>(run.totalSteps - report.step);
  nlohmann::ordered_json values = {
      {"step", report.step},
      {"loss", report.loss},
      {"grad_norm", report.gradNorm},
      {"learning_rate", report.learningRate},
      {"epoch", report.epoch},
      {"step_time", report.stepSeconds},
      {"tokens_per_second", report.tokensPerSecond},
      {"num_input_tokens_seen", tokens}};
  addSums(values, "", logged.sums, run.routerFactor);
  report.rewards = rewardsOf(values, logged.sums);
  if (!std::exchange(hasHeading, true))
    run.metrics->say(stepHeading(run.totalSteps, report.rewards.has_value()));
  if (std::isfinite(logged.waits))
    values["exposed_communication"] =
        logged.waits / static_cast<double>(logged.steps);
  values.update(machines);
  QLORA_RETURN_IF_ERROR(run.metrics->log(values, stepLine(report)));
  if (const std::string doubt = divergence.check(report); !doubt.empty()) {
    run.metrics->warn(doubt);
    hasDiverged = true;
  }
  return Status::ok();
}

/// Position of the first statistic in the list "sums" of a checkpoint.
static constexpr size_t kFirstListed =
    QLORA_RESULT_CHOSEN_REWARDS - QLORA_RESULT_LOSS_SUM;

nlohmann::ordered_json StepLog::state() const {
  nlohmann::ordered_json preferences = nullptr;
  if ((window.sums.present >> kFirstListed).any())
    preferences = {
        {"count", window.sums.labels()},
        {"sums", std::span(window.sums.values).subspan(kFirstListed)}};
  return {{"updates", updates},
          {"tokens", tokens},
          {"loss_sum", lossSum},
          {"has_diverged", hasDiverged},
          {"seconds", secondsBefore + secondsSince(start)},
          {"grad_norm", last.gradNorm},
          {"window",
           {{"updates", window.updates},
            {"steps", window.steps},
            {"tokens", window.tokens},
            {"loss_sum", window.lossSum},
            {"preferences", preferences},
            {"labels", window.sums.labels()},
            {"router_loss", window.sums.routers()},
            {"seconds", secondsSince(window.start)}}},
          {"divergence", divergence.state()}};
}

nlohmann::ordered_json withPreferences(nlohmann::ordered_json window) {
  const auto pairs = window.find("pairs");
  if (pairs == window.end() || pairs->is_null())
    return window;
  window["preferences"] = {{"count", pairs->at("count")},
                           {"sums", pairs->at("sums")}};
  return window;
}

void StepLog::restore(const nlohmann::ordered_json &state, int64_t stepsDone) {
  firstStep = stepsDone;
  updates = state.at("updates");
  tokens = state.at("tokens");
  lossSum = state.at("loss_sum");
  hasDiverged = state.at("has_diverged");
  secondsBefore = state.at("seconds");
  last.gradNorm = state.at("grad_norm");
  const auto logged = withPreferences(state.at("window"));
  window.updates = logged.at("updates");
  window.steps = logged.at("steps");
  window.tokens = logged.at("tokens");
  window.lossSum = logged.at("loss_sum");
  for (const qlora_binding_kind statistic : run.program.statistics())
    window.sums.setPresent(statistic);
  if (const auto preferences = logged.find("preferences");
      preferences != logged.end() && !preferences->is_null()) {
    window.sums[QLORA_RESULT_LABEL_COUNT] = preferences->at("count");
    const std::vector<double> listed = preferences->at("sums");
    std::ranges::copy(listed | std::views::take(kStatisticCount - kFirstListed),
                      window.sums.values.begin() + kFirstListed);
  }
  window.sums[QLORA_RESULT_LABEL_COUNT] =
      logged.value("labels", window.sums.labels());
  window.sums[QLORA_RESULT_ROUTER_LOSS] = logged.value("router_loss", 0.0);
  const std::chrono::duration<double> before(
      logged.at("seconds").get<double>());
  window.start -= std::chrono::duration_cast<Clock::duration>(before);
  divergence.restore(state.at("divergence"));
}

StepTotals StepLog::totals() const {
  return {secondsBefore + secondsSince(start),
          updates > 0 ? lossSum / static_cast<double>(updates) : 0, tokens,
          hasDiverged};
}

} // namespace qlora
