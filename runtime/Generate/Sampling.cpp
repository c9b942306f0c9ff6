// SPDX-License-Identifier: MIT

// Sampling on the host, in f64.

#include "runtime/Generate/Sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/Kernels/Math/Philox.h"

namespace qlora {

Status SamplingOptions::check() const {
  if (!(temperature >= 0) || std::isinf(temperature))
    return Status::invalid("temperature {} must be finite and at least 0",
                           temperature);
  if (topK < 0)
    return Status::invalid("top_k {} must be at least 0", topK);
  if (!(topP > 0 && topP <= 1))
    return Status::invalid("top_p {} must be above 0 and at most 1", topP);
  if (!(minP >= 0 && minP <= 1))
    return Status::invalid("min_p {} must be from 0 to 1", minP);
  if (!(repetitionPenalty > 0) || std::isinf(repetitionPenalty))
    return Status::invalid("repetition_penalty {} must be finite and above 0",
                           repetitionPenalty);
  if (!(std::abs(presencePenalty) <= 100))
    return Status::invalid("presence_penalty {} must be from -100 to 100",
                           presencePenalty);
  return Status::ok();
}

/// Whether token `a` comes before `b`: larger logit, then smaller id.
static bool isBetter(std::span<const float> logits, int32_t a, int32_t b) {
  const float x = logits[static_cast<size_t>(a)],
              y = logits[static_cast<size_t>(b)];
  return x != y ? x > y : a < b;
}

static std::vector<float> penalized(std::span<const float> logits,
                                    const SamplingOptions &options,
                                    std::span<const int32_t> prompt,
                                    std::span<const int32_t> answer) {
  std::vector<float> changed(logits.begin(), logits.end());
  std::vector<bool> isSeen(logits.size()), isAnswered(logits.size());
  const auto mark = [&](std::span<const int32_t> tokens,
                        std::vector<bool> &marks) {
    for (int32_t token : tokens)
      if (token >= 0 && static_cast<size_t>(token) < logits.size())
        marks[static_cast<size_t>(token)] = true;
  };
  mark(prompt, isSeen);
  mark(answer, isSeen);
  mark(answer, isAnswered);
  for (size_t i = 0; i < changed.size(); ++i) {
    if (isSeen[i])
      changed[i] = float(changed[i] > 0
                             ? changed[i] / options.repetitionPenalty
                             : changed[i] * options.repetitionPenalty);
    if (isAnswered[i])
      changed[i] = float(changed[i] - options.presencePenalty);
  }
  return changed;
}

/// Returns the tokens that top-k, top-p and min-p keep, likeliest first; at
/// least one. `weights`: proportional to the probabilities.
static std::vector<int32_t> keptTokens(std::span<const float> logits,
                                       std::span<const double> weights,
                                       const SamplingOptions &options) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    return isBetter(logits, a, b);
  };
  if (options.topK > 0 && options.topK < std::ssize(order)) {
    std::nth_element(order.begin(), order.begin() + options.topK, order.end(),
                     better);
    order.resize(static_cast<size_t>(options.topK));
  }
  const auto weight = [&](int32_t token) {
    return weights[static_cast<size_t>(token)];
  };
  // Few tokens of a large vocabulary are kept, so they are not all sorted.
  const auto worse = [&](int32_t a, int32_t b) { return better(b, a); };
  std::ranges::make_heap(order, worse);
  double all = 0, sum = 0;
  std::ranges::for_each(order, [&](int32_t token) { all += weight(token); });
  std::vector<int32_t> kept;
  // After top-p, min-p compares with the best of the tokens that are left,
  // which is the same one.
  while (!order.empty() && (options.topP == 1 || sum < options.topP * all)) {
    std::ranges::pop_heap(order, worse);
    if (!kept.empty() && weight(order.back()) < options.minP * weight(kept[0]))
      break;
    kept.push_back(order.back());
    sum += weight(order.back());
    order.pop_back();
  }
  return kept;
}

/// Returns a number in [0, 1) for draw number `draw`.
static double uniform(uint64_t seed, uint64_t draw) {
  const qlora_philox_words words =
      qlora_philox({uint32_t(draw), uint32_t(draw >> 32), 0, 0},
                   uint32_t(seed), uint32_t(seed >> 32));
  const uint64_t bits = uint64_t(words.word0) << 32 | words.word1;
  return double(bits >> 11) * 0x1p-53;
}

int32_t sampleToken(std::span<const float> given,
                    const SamplingOptions &options,
                    std::span<const int32_t> prompt,
                    std::span<const int32_t> answer, uint64_t draw) {
  std::vector<float> changed;
  std::span<const float> logits = given;
  if (options.repetitionPenalty != 1 || options.presencePenalty != 0)
    logits = changed = penalized(given, options, prompt, answer);
  const auto best = std::ranges::max_element(logits);
  if (options.temperature == 0) // the first token with the largest logit
    return static_cast<int32_t>(best - logits.begin());
  std::vector<double> weights(logits.size());
  std::ranges::transform(logits, weights.begin(), [&](float logit) {
    return std::exp((double(logit) - *best) / options.temperature);
  });
  std::vector<int32_t> kept(logits.size());
  if (options.topK == 0 && options.topP == 1 && options.minP == 0)
    std::iota(kept.begin(), kept.end(), 0);
  else
    kept = keptTokens(logits, weights, options);
  double total = 0;
  for (int32_t token : kept)
    total += weights[static_cast<size_t>(token)];
  double left = uniform(options.seed, draw) * total;
  for (int32_t token : kept)
    if (left -= weights[static_cast<size_t>(token)]; left < 0)
      return token;
  // Rounding: the last token that can be drawn.
  return *std::find_if(kept.rbegin(), kept.rend(), [&](int32_t token) {
    return weights[static_cast<size_t>(token)] > 0;
  });
}

std::vector<TokenLogProb> logProbs(std::span<const float> logits,
                                   int32_t token, int64_t count) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (float logit : logits)
    sum += std::exp(logit - largest);
  const double normal = largest + std::log(sum);
  const auto of = [&](int32_t id) {
    return TokenLogProb{id, logits[static_cast<size_t>(id)] - normal};
  };
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kept = static_cast<std::ptrdiff_t>(
      std::min<size_t>(logits.size(), static_cast<size_t>(count)));
  std::partial_sort(
      order.begin(), order.begin() + kept, order.end(),
      [&](int32_t a, int32_t b) { return isBetter(logits, a, b); });
  std::vector<TokenLogProb> result = {of(token)};
  for (std::ptrdiff_t i = 0; i < kept; ++i)
    result.push_back(of(order[static_cast<size_t>(i)]));
  return result;
}

} // namespace qlora
