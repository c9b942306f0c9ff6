// SPDX-License-Identifier: MIT

// The result of an evaluation (Session/Evaluation.h computes it).

#ifndef QLORA_RUNTIME_CHECKPOINT_EVALUATIONRESULT_H
#define QLORA_RUNTIME_CHECKPOINT_EVALUATIONRESULT_H

#include <nlohmann/json.hpp>

#include "runtime/Device/Program.h"

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

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_EVALUATIONRESULT_H
