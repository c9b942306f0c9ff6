// SPDX-License-Identifier: MIT

// Evaluation of the validation file: every row once, divided among the ranks.

#ifndef QLORA_RUNTIME_SESSION_EVALUATION_H
#define QLORA_RUNTIME_SESSION_EVALUATION_H

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/EvaluationResult.h"
#include "runtime/Checkpoint/Run.h"

namespace qlora {

/// Returns the metrics of the training objective as text, such as "perplexity
/// 8.21"; empty for a loss of tokens that has no perplexity. The terminal shows
/// it after the loss. `values`: the logged values.
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
