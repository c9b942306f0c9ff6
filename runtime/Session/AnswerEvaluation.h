// SPDX-License-Identifier: MIT

// Answers the validation rows during training (--predict-with-generate), with
// the weights in the device's arenas. Data-parallel ranks answer rows r, r + N,
// ... of N ranks; rank 0 scores all answers and writes
//
//   OUTPUT_DIR/predictions/step-N.jsonl
//
// Answers are greedy. A row that cannot be answered, because its prompt fills a
// slot or its logits are not finite, has an empty answer that did not stop.

#ifndef QLORA_RUNTIME_SESSION_ANSWEREVALUATION_H
#define QLORA_RUNTIME_SESSION_ANSWEREVALUATION_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/Run.h"
#include "runtime/Generate/Generator.h"
#include "runtime/Options/Options.h"
#include "runtime/Session/AnswerScorer.h"
#include "runtime/Watch/AnswersTable.h"

namespace qlora {

class AnswerEvaluation {
public:
  /// Returns null unless the options request answers. All ranks call it,
  /// before the weights are read. `metrics`: null on ranks other than 0.
  static StatusOr<std::unique_ptr<AnswerEvaluation>>
  open(const LoadedModule &module, Device &device, const Options &options,
       RankGroup &group, Metrics *metrics);

  /// Removes files of answers after later steps than `step`, which an earlier
  /// run in the folder has written.
  static void removeAfter(const std::string &outputFolder, int64_t step);

  /// Answers all rows of Run::validation, and returns the metrics by name. All
  /// ranks call it and get the same result. Returns nothing if any rank
  /// received a stop signal.
  StatusOr<std::optional<nlohmann::ordered_json>> evaluate(const Run &run,
                                                           int64_t step);

private:
  enum class Outcome : int64_t { kLength, kStop, kTooLong, kNotFinite };
  /// The answer to a row of Run::validation, or to one of its segments.
  struct Answer {
    int64_t row = 0, part = 0;
    Outcome outcome = Outcome::kLength;
    std::vector<int32_t> output; ///< with its end token
  };

  AnswerEvaluation() = default;
  Status addRows(const Run &run, Generator &generator);
  StatusOr<bool> answerOwn(const Run &run, Generator &generator);
  bool take(const GeneratedToken &token);
  StatusOr<bool> gather(RankGroup &group, bool hasStopped);
  StatusOr<std::vector<ComparedAnswer>> compared(const Run &run) const;
  StatusOr<nlohmann::ordered_json> score(const Run &run, int64_t step);
  int64_t warnOfUnanswered(const Run &run);

  GenerationLimits limits;
  int64_t maxNewTokens = 0;
  std::vector<int32_t> endTokens;
  std::optional<AnswerScorer> scorer; ///< only on rank 0
  bool hasWarned = false;             ///< of prompts that are too long

  // State of an evaluate().
  std::vector<Answer> answers; ///< of this rank, then of all ranks
  int64_t nextRow = 0;         ///< next row for this rank
  int64_t finished = 0;        ///< answers of this rank that are complete
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_ANSWEREVALUATION_H
