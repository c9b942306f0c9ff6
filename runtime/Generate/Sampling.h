// SPDX-License-Identifier: MIT

// Chooses the next token from logits, with the options and the order of
// transformers' generate(): repetition and presence penalty, temperature,
// top-k, top-p, min-p, then a draw.
//
// The result depends only on the arguments: a draw is a function of the seed
// and the number of the draw (Kernels/Math/Philox.h), not of other rows.

#ifndef QLORA_RUNTIME_GENERATE_SAMPLING_H
#define QLORA_RUNTIME_GENERATE_SAMPLING_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

struct SamplingOptions {
  double temperature = 1; ///< 0: greedy, the token with the largest logit
  int64_t topK = 0;       ///< keeps this many tokens; 0: all
  double topP = 1; ///< keeps the likeliest tokens that have this probability
  double minP = 0; ///< keeps tokens of this probability, relative to the best
  /// Divides positive logits of tokens in prompt and answer, and multiplies
  /// negative ones; 1: no change.
  double repetitionPenalty = 1;
  /// Subtracted from the logits of tokens in the answer.
  double presencePenalty = 0;
  uint64_t seed = 0;

  /// Returns kInvalidArgument with the name of an option that is out of range.
  Status check() const;
};

/// A token and the logarithm of its probability.
struct TokenLogProb {
  int32_t token = 0;
  double logProb = 0;
};

/// Returns the token for draw number `draw` of a row. `logits`: one per token
/// of the vocabulary. `prompt` and `answer` are the row's tokens so far.
int32_t sampleToken(std::span<const float> logits,
                    const SamplingOptions &options,
                    std::span<const int32_t> prompt,
                    std::span<const int32_t> answer, uint64_t draw);

/// Returns the log-probability of `token` first, then those of the `count`
/// likeliest tokens, likeliest first. They are of the unchanged logits; sums
/// are f64.
std::vector<TokenLogProb> logProbs(std::span<const float> logits,
                                   int32_t token, int64_t count);

} // namespace qlora

#endif // QLORA_RUNTIME_GENERATE_SAMPLING_H
