// SPDX-License-Identifier: MIT

// Evaluation of the validation file: every row once, shared among the ranks.

#ifndef QLORA_RUNTIME_SESSION_EVALUATION_H
#define QLORA_RUNTIME_SESSION_EVALUATION_H

#include <optional>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Session/Run.h"

namespace qlora {

struct EvaluationResult {
  double loss = 0;          ///< mean over labelled tokens, pairs or answers
  double perplexity = 0;    ///< exp(loss without that of routers)
  double tokenAccuracy = 0; ///< share of labelled tokens that are the argmax
  double argmaxMatch = 0;   ///< share of rows whose labelled tokens all are
  int64_t rows = 0;         ///< with a labelled token
  LossSums sums;
};

/// What the terminal says beside the loss, of the values that are logged: what
/// the objective is about.
std::string measureOf(const nlohmann::ordered_json &values,
                      const EvaluationResult &result);

/// Evaluates and logs under `step` and `epoch`, with `title` on the terminal.
/// All ranks call it; all get the same result: nothing, and nothing is logged,
/// where a signal to stop has come to any of them.
StatusOr<std::optional<EvaluationResult>> evaluateAndLog(const Run &run, int64_t step,
                                          double epoch,
                                          const std::string &title);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_EVALUATION_H
