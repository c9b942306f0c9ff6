// SPDX-License-Identifier: MIT

// Compares evaluations.

#include "runtime/Checkpoint/BestModel.h"

#include <algorithm>
#include <cmath>

#include "runtime/Options/OptionValue.h"

namespace qlora {

namespace {
struct MetricRow {
  std::string_view name;
  double EvaluationResult::*value; ///< null: only of generated answers
  bool greaterIsBetter;
};
} // namespace

static constexpr const char *kMetricOption = "metric_for_best_model";

/// Choices of --metric-for-best-model: metrics.jsonl adds the prefix eval_.
static constexpr MetricRow kMetrics[] = {
    {"loss", &EvaluationResult::loss, false},
    {"perplexity", &EvaluationResult::perplexity, false},
    {"token_accuracy", &EvaluationResult::tokenAccuracy, true},
    {"exact_match", &EvaluationResult::exactMatch, true},
    {"f1", nullptr, true},
    {"rouge1", nullptr, true},
    {"rouge2", nullptr, true},
    {"rougeL", nullptr, true},
    {"rougeLsum", nullptr, true},
    {"stopped", nullptr, true}};

static const MetricRow &metricOf(const std::string &name) {
  return *std::ranges::find(kMetrics, name, &MetricRow::name);
}

/// Whether every checkpoint has an evaluation: both are numbers of steps, or
/// both are fractions of all steps, which transformers compares in millionths.
static bool areMultiples(double saveSteps, double evalSteps) {
  const double unit = saveSteps < 1 ? 1e6 : 1;
  return (saveSteps < 1) == (evalSteps < 1) &&
         std::fmod(std::round(saveSteps * unit),
                   std::round(evalSteps * unit)) == 0;
}

/// Checks that evaluations coincide with checkpoints, so the best is saved.
static Status checkSameSteps(const Options &options) {
  const std::string evaluates = options.text("eval_strategy");
  const std::string saves = options.text("save_strategy");
  double evalSteps = options.number("eval_steps");
  const bool isSteps =
      evaluates == "steps" || (evaluates == "no" && evalSteps > 0);
  if (evalSteps == 0)
    evalSteps = options.number("logging_steps");
  const double saveSteps = options.number("save_steps");
  const bool areSame = saves == "epoch"
                           ? evaluates == "epoch"
                           : saves == "steps" && isSteps && saveSteps > 0 &&
                                 areMultiples(saveSteps, evalSteps);
  if (areSame)
    return Status::ok();
  return Status::invalid(
      "{}: needs an evaluation at every checkpoint: give --eval-strategy and "
      "--save-strategy the same value, and a --save-steps ({}) that is a "
      "multiple of --eval-steps ({})",
      options.spelling("load_best_model_at_end"), saveSteps, evalSteps);
}

bool comparesEvaluations(const Options &options) {
  return options.boolean("load_best_model_at_end") ||
         options.integer("early_stopping_patience") > 0;
}

Status checkBestModelOptions(const Options &options) {
  if (!comparesEvaluations(options))
    return Status::ok();
  const bool loadsBest = options.boolean("load_best_model_at_end");
  const char *option =
      loadsBest ? "load_best_model_at_end" : "early_stopping_patience";
  const bool hasData = !options.paths("validation_file").empty() ||
                       options.number("val_set_size") > 0;
  if (!hasData || (options.text("eval_strategy") == "no" &&
                   options.number("eval_steps") == 0))
    return Status::invalid("{}: needs evaluations: give --validation-file FILE "
                           "and --eval-strategy steps or epoch",
                           options.spelling(option));
  return loadsBest ? checkSameSteps(options) : Status::ok();
}

static bool isGreaterBetter(const Options &options) {
  const std::string given = options.text("greater_is_better");
  return given == "auto" ? metricOf(options.text(kMetricOption)).greaterIsBetter
                         : given == "true";
}

BestModel::BestModel(const Options &options)
    : name(options.text(kMetricOption)),
      isOfAnswers(options.boolean("predict_with_generate")),
      greaterIsBetter(isGreaterBetter(options)),
      threshold(options.number("early_stopping_threshold")),
      patience(options.integer("early_stopping_patience")) {}

/// Returns a metric of the evaluation; NaN if the evaluation lacks it.
static double valueOf(const EvaluationResult &result, const std::string &name) {
  if (const auto found = result.ofAnswers.find(name);
      found != result.ofAnswers.end())
    return found->get<double>();
  const MetricRow &metric = metricOf(name);
  return metric.value ? result.*metric.value : std::nan("");
}

void BestModel::add(const EvaluationResult &result, int64_t step) {
  const double value = valueOf(result, name);
  const bool isBetter =
      !std::isnan(value) &&
      (!best || (greaterIsBetter ? value > *best : value < *best));
  // A gain below the threshold is a new best, but does not reset the patience.
  const bool isProgress =
      isBetter && (!best || std::abs(value - *best) > threshold);
  withoutBetter = isProgress ? 0 : withoutBetter + 1;
  if (!isBetter)
    return;
  best = value;
  bestStep = step;
}

nlohmann::ordered_json BestModel::state() const {
  return {{"of", name},
          {"of_answers", isOfAnswers},
          {"greater_is_better", greaterIsBetter},
          {"metric", best ? nlohmann::ordered_json(*best) : nullptr},
          {"step", bestStep},
          {"without_better", withoutBetter}};
}

void BestModel::restore(const nlohmann::ordered_json &state) {
  // Metrics with different names cannot be compared.
  const OptionRow &row = *findOption(optionTable(), kMetricOption);
  const auto earlier = parseOptionText(row, state.value("of", name));
  if (!earlier.isOk() || earlier.value() != name ||
      state.value("of_answers", false) != isOfAnswers ||
      state.value("greater_is_better", greaterIsBetter) != greaterIsBetter)
    return;
  if (!state.at("metric").is_null())
    best = state.at("metric").get<double>();
  bestStep = state.at("step");
  withoutBetter = state.at("without_better");
}

} // namespace qlora
