// SPDX-License-Identifier: MIT

// Scores generated answers: text metrics with `qlora-data metrics`, which needs
// the model's tokenizer, or without a tokenizer the exact matches of token ids.

#ifndef QLORA_RUNTIME_SESSION_ANSWERSCORER_H
#define QLORA_RUNTIME_SESSION_ANSWERSCORER_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// An answer, its prompt and its reference.
struct ComparedAnswer {
  std::vector<int32_t> prompt, output, reference;
  bool hasStopped = false; ///< the last token of `output` is an end token
};

/// Checks the options of --predict-with-generate against the others.
Status checkAnswerOptions(const Options &options);

class AnswerScorer {
public:
  /// Finds the end tokens, and whether text metrics are possible. Rank 0 calls
  /// it. If they are not, but the options or the data need them, returns why.
  /// `converter`: path of qlora-data (Data/TokenCache.h), or why there is none.
  static StatusOr<AnswerScorer> find(const Options &options,
                                     StatusOr<std::string> converter);

  const std::vector<int32_t> &endTokens() const { return ends; }
  /// Returns a warning about what is not scored or not applied; may be empty.
  const std::string &remark() const { return warning; }

  /// Writes `path`, one line per answer. Returns the metrics by name, such
  /// as {"exact_match": 0.5, "stopped": 1}.
  StatusOr<nlohmann::ordered_json>
  score(const std::vector<ComparedAnswer> &answers,
        const std::string &path) const;

private:
  StatusOr<nlohmann::ordered_json>
  scoreText(const std::vector<ComparedAnswer> &answers,
            const std::string &path) const;

  std::string converter; ///< path of qlora-data; empty: no text metrics
  std::vector<std::string> flags; ///< of qlora-data
  std::vector<int32_t> ends;
  std::string warning;
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_ANSWERSCORER_H
