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

/// Returns how many of the probabilities, which are sorted, top-p and min-p
/// keep; at least one.
static size_t keptCount(std::span<const double> probabilities, double total,
                        const SamplingOptions &options) {
  size_t kept = probabilities.size();
  if (options.topP < 1) {
    double sum = 0;
    for (kept = 0; kept < probabilities.size() && sum < options.topP * total;)
      sum += probabilities[kept++];
  }
  // After top-p, min-p compares with the best of the tokens that are left,
  // which is the same one.
  while (kept > 1 &&
         probabilities[kept - 1] < options.minP * probabilities[0])
    --kept;
  return std::max<size_t>(kept, 1);
}

int32_t sampleToken(std::span<const float> given,
                    const SamplingOptions &options,
                    std::span<const int32_t> prompt,
                    std::span<const int32_t> answer, uint64_t draw) {
  std::vector<float> changed;
  std::span<const float> logits = given;
  if (options.repetitionPenalty != 1 || options.presencePenalty != 0)
    logits = changed = penalized(given, options, prompt, answer);
  if (options.temperature == 0) // the first token with the largest logit
    return static_cast<int32_t>(std::ranges::max_element(logits) -
                                logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    return isBetter(logits, a, b);
  };
  size_t count = order.size();
  if (options.topK > 0)
    count = std::min(count, static_cast<size_t>(options.topK));
  std::partial_sort(order.begin(),
                    order.begin() + static_cast<std::ptrdiff_t>(count),
                    order.end(), better);
  const double largest = logits[static_cast<size_t>(order[0])];
  std::vector<double> probabilities(count);
  for (size_t i = 0; i < count; ++i)
    probabilities[i] = std::exp(
        (logits[static_cast<size_t>(order[i])] - largest) /
        options.temperature);
  const double all =
      std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  count = keptCount(probabilities, all, options);
  const double total = std::accumulate(
      probabilities.begin(),
      probabilities.begin() + static_cast<std::ptrdiff_t>(count), 0.0);
  const qlora_philox_words words = qlora_philox(
      {uint32_t(draw), uint32_t(draw >> 32), 0, 0}, uint32_t(options.seed),
      uint32_t(options.seed >> 32));
  const uint64_t bits = uint64_t(words.word0) << 32 | words.word1;
  double left = double(bits >> 11) * 0x1p-53 * total;
  size_t chosen = 0;
  while (chosen + 1 < count && left >= probabilities[chosen])
    left -= probabilities[chosen++];
  return order[chosen];
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
