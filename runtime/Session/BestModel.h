// SPDX-License-Identifier: MIT

// The best evaluation so far, and whether it is long ago: what
// --load-best-model-at-end takes and --early-stopping-patience waits for, by
// the rules of transformers' Trainer and EarlyStoppingCallback. The same on
// every rank.

#ifndef QLORA_RUNTIME_SESSION_BESTMODEL_H
#define QLORA_RUNTIME_SESSION_BESTMODEL_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Session/Evaluation.h"

namespace qlora {

/// Whether the options that speak of evaluations and checkpoints agree.
Status checkBestModelOptions(const Options &options);

class BestModel {
public:
  explicit BestModel(const Options &options);

  /// After the evaluation at `step`.
  void add(const EvaluationResult &result, int64_t step);
  /// As many evaluations without a better one as the patience has.
  bool shouldStop() const { return patience > 0 && withoutBetter >= patience; }

  /// Of the best evaluation; nothing before the first.
  std::optional<double> metric() const { return best; }
  int64_t step() const { return bestStep; }

  nlohmann::ordered_json state() const;
  /// Of an earlier run; the best of another metric is forgotten.
  void restore(const nlohmann::ordered_json &state);

private:
  const std::string name; ///< without eval_
  const bool greaterIsBetter;
  const double threshold;
  const int64_t patience; ///< 0: never stops
  std::optional<double> best;
  int64_t bestStep = 0;
  int64_t withoutBetter = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_BESTMODEL_H
