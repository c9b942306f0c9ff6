// SPDX-License-Identifier: MIT

// Files of generated answers (--predict-with-generate), their metrics, and a
// table of the first answers in a run's last two evaluations.
//
//   OUTPUT_DIR/predictions/step-N.jsonl
//
// A line has texts (prompt, reference, prediction), or without a tokenizer
// lists of token ids (prompt_ids, reference_ids, output_ids).

#ifndef QLORA_RUNTIME_WATCH_ANSWERSTABLE_H
#define QLORA_RUNTIME_WATCH_ANSWERSTABLE_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Watch/PageData.h"

namespace qlora {

inline constexpr const char *kAnswersFolder = "predictions";

/// Returns the path of the answers after `step`, in a run's folder.
std::string answersFile(const std::string &folder, int64_t step);

/// The first answers after one step.
struct FirstAnswers {
  int64_t step = 0;
  std::vector<nlohmann::json> rows; ///< JSON objects
};

/// Reads the answers after the last two of `evaluations` (LoggedLines). An
/// evaluation without a readable file is left out.
std::vector<FirstAnswers>
readLastAnswers(const std::string &folder,
                const std::vector<nlohmann::json> &evaluations);

// Metrics have the prefix eval_ in the log, but not here.

/// Whether every evaluation has the metric. All others are of answers.
bool isOfEveryEvaluation(std::string_view metric);

/// Returns a metric of answers as text: "exact match 50.0 %". Metrics of
/// --compute-metrics may have any unit.
std::string metricText(std::string_view metric, double value);

/// Returns all metrics of answers in a line of the log, as text.
std::string loggedMetricsText(const nlohmann::json &evaluation);

/// Returns a table of a page (PageData.h), without rows if there are no
/// answers.
Table answersTable(const std::vector<FirstAnswers> &answers);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_ANSWERSTABLE_H
