// SPDX-License-Identifier: MIT

// Tracks the best evaluation and the number of evaluations after it, for
// --load-best-model-at-end and --early-stopping-patience. Follows transformers'
// Trainer and EarlyStoppingCallback. The state is the same on every rank.

#ifndef QLORA_RUNTIME_CHECKPOINT_BESTMODEL_H
#define QLORA_RUNTIME_CHECKPOINT_BESTMODEL_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/EvaluationResult.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Whether the run compares evaluations: it keeps the best, or stops early.
bool comparesEvaluations(const Options &options);

/// Checks that the evaluation and checkpoint options are consistent.
Status checkBestModelOptions(const Options &options);

class BestModel {
public:
  explicit BestModel(const Options &options);

  /// Records the evaluation after `step`.
  void add(const EvaluationResult &result, int64_t step);
  /// Returns whether `patience` consecutive evaluations had no improvement.
  bool shouldStop() const { return patience > 0 && withoutBetter >= patience; }

  /// Metric of the best evaluation; empty before the first.
  std::optional<double> metric() const { return best; }
  int64_t step() const { return bestStep; }

  nlohmann::ordered_json state() const;
  /// Restores an earlier run's state, unless it is for another metric.
  void restore(const nlohmann::ordered_json &state);

private:
  const std::string name; ///< metric's name, without eval_
  /// Whether metrics are those of generated answers. With the same name they
  /// measure something else, such as exact_match.
  const bool isOfAnswers;
  const bool greaterIsBetter;
  const double threshold;
  const int64_t patience; ///< 0: never stops
  std::optional<double> best;
  int64_t bestStep = 0;
  int64_t withoutBetter = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_BESTMODEL_H
