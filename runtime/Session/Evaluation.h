// SPDX-License-Identifier: MIT

// Evaluation of the validation file: every row once, divided among the ranks.

#ifndef QLORA_RUNTIME_SESSION_EVALUATION_H
#define QLORA_RUNTIME_SESSION_EVALUATION_H

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Session/Run.h"

namespace qlora {

struct EvaluationResult {
  double loss = 0;          ///< mean over labelled tokens, pairs or answers
  double perplexity = 0;    ///< exp(loss without the router loss)
  double tokenAccuracy = 0; ///< fraction of labelled tokens that are the argmax
  double exactMatch = 0; ///< fraction of rows whose labels are all the argmax
  int64_t rows = 0;         ///< rows with a labelled token
  LossSums sums;
  /// Metrics of generated answers by name (AnswerEvaluation.h); empty without
  /// --predict-with-generate.
  nlohmann::ordered_json ofAnswers = nlohmann::ordered_json::object();
};

/// Returns the metrics of the training objective as text, such as "perplexity
/// 8.21". The terminal shows it after the loss. `values`: the logged values.
std::string measureOf(const nlohmann::ordered_json &values,
                      const EvaluationResult &result);

/// Evaluates, and logs the result for `step` and `epoch`, with `title` on the
/// terminal. All ranks call it and get the same result. If any rank received a
/// stop signal, returns nothing and logs nothing.
StatusOr<std::optional<EvaluationResult>>
evaluateAndLog(const Run &run, int64_t step, double epoch,
               const std::string &title);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_EVALUATION_H
