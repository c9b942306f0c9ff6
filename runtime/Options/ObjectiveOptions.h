// SPDX-License-Identifier: MIT

// Constraints on the options of the training objective (rl).

#ifndef QLORA_RUNTIME_OPTIONS_OBJECTIVEOPTIONS_H
#define QLORA_RUNTIME_OPTIONS_OBJECTIVEOPTIONS_H

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/Options/Options.h"

namespace qlora {

/// Returns what `lossType`, a value of loss_type, selects for the objective
/// `rl`; empty for objectives that have only one loss.
nlohmann::ordered_json lossOf(const std::string &rl,
                              const nlohmann::ordered_json &lossType);

/// Losses that are added, each times its weight.
struct WeightedLosses {
  std::vector<std::string> words; ///< of --loss-type
  std::vector<double> weights;

  bool has(std::string_view word) const {
    return std::ranges::count(words, word) > 0;
  }
};

/// Returns the losses of the objective; none if it has only one loss.
WeightedLosses lossesOf(const Options &options);

/// Returns whether the loss of tokens is not their cross-entropy, so that its
/// exponential is no perplexity.
bool changesTokenLoss(const Options &options);

/// Checks that the other options work with the objective (rl).
Status validateObjective(const Options &options);

/// Checks that `ranks` ranks can train for the objective. `together`: number of
/// ranks that share the same rows.
Status checkRanksOf(const Options &options, int64_t ranks, int64_t together);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_OBJECTIVEOPTIONS_H
