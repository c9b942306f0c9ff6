// SPDX-License-Identifier: MIT

// Sampling compared with probabilities that are computed token by token from
// the definitions of the options.

#include "runtime/Generate/Sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace qlora {
namespace {

using Tokens = std::vector<int32_t>;
using Logits = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Distinct logits in no order; token 3 is the likeliest.
const Logits kLogits = {0.5f, -1.0f, 1.25f, 2.0f, -0.25f, 0.75f, -3.0f, 1.5f};

bool contains(const Tokens &tokens, size_t token) {
  return std::ranges::count(tokens, int32_t(token)) > 0;
}

/// Sets the probabilities of tokens to 0 that `isKept` refuses, and divides the
/// others by their sum.
template <typename Condition>
std::vector<double> keep(const std::vector<double> &from, Condition isKept) {
  std::vector<double> kept(from.size());
  double sum = 0;
  for (size_t i = 0; i < from.size(); ++i)
    sum += kept[i] = isKept(i) ? from[i] : 0;
  for (double &one : kept)
    one /= sum;
  return kept;
}

/// Returns the probability of each token, for logits that all differ.
std::vector<double> probabilitiesOf(const Logits &logits,
                                    const SamplingOptions &options,
                                    const Tokens &prompt = {},
                                    const Tokens &answer = {}) {
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < p.size(); ++i) {
    double logit = logits[i];
    if (contains(prompt, i) || contains(answer, i))
      logit = logit > 0 ? logit / options.repetitionPenalty
                        : logit * options.repetitionPenalty;
    if (contains(answer, i))
      logit -= options.presencePenalty;
    p[i] = std::exp(logit / options.temperature);
  }
  p = keep(p, [](size_t) { return true; });
  const auto better = [&](size_t i) {
    return [&p, i](double other) { return other > p[i]; };
  };
  if (options.topK > 0)
    p = keep(p, [&](size_t i) {
      return std::ranges::count_if(p, better(i)) < options.topK;
    });
  p = keep(p, [&](size_t i) {
    double sum = 0;
    for (double other : p)
      sum += other > p[i] ? other : 0;
    return sum < options.topP;
  });
  const double best = *std::ranges::max_element(p);
  return keep(p, [&](size_t i) { return p[i] >= options.minP * best; });
}

/// Draws 20000 tokens, and compares their frequencies. Tokens of probability 0
/// must not occur. The limit of chi-square is exceeded with probability 1e-6 at
/// 7 degrees of freedom; fewer make that rarer.
void expectDraws(const SamplingOptions &options, const Tokens &prompt = {},
                 const Tokens &answer = {}) {
  constexpr uint64_t kDraws = 20000;
  const std::vector<double> expected =
      probabilitiesOf(kLogits, options, prompt, answer);
  std::vector<double> counts(kLogits.size());
  for (uint64_t draw = 0; draw < kDraws; ++draw)
    ++counts[size_t(sampleToken(kLogits, options, prompt, answer, draw))];
  double chiSquare = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
      continue;
    }
    const double mean = expected[i] * kDraws;
    chiSquare += (counts[i] - mean) * (counts[i] - mean) / mean;
  }
  EXPECT_LT(chiSquare, 40);
}

TEST(Sampling, DrawsWithTheProbabilitiesOfTheLogits) {
  expectDraws({});
  expectDraws({.seed = uint64_t(1) << 40});
  expectDraws({.temperature = 0.5, .seed = 3});
  expectDraws({.temperature = 4, .seed = 4});
}

TEST(Sampling, DrawsOnlyKeptTokens) {
  expectDraws({.topK = 3});
  expectDraws({.topK = 100});
  expectDraws({.topP = 0.7});
  expectDraws({.topP = 0.999, .seed = 1});
  expectDraws({.minP = 0.2, .seed = 2});
  expectDraws({.temperature = 2, .topK = 5, .topP = 0.8, .seed = 5});
  expectDraws({.temperature = 0.7, .topK = 6, .topP = 0.95, .minP = 0.3});
}

TEST(Sampling, DrawsWithPenalties) {
  const Tokens prompt = {3, 1, 3}, answer = {7, 1};
  expectDraws({.repetitionPenalty = 1.5}, prompt, answer);
  expectDraws({.presencePenalty = 1}, prompt, answer);
  expectDraws({.temperature = 1.2, .topK = 4, .topP = 0.9,
               .repetitionPenalty = 0.8, .presencePenalty = -0.5},
              prompt, answer);
}

TEST(Sampling, KeepsAtLeastTheBestToken) {
  for (uint64_t draw = 0; draw < 100; ++draw) {
    EXPECT_EQ(sampleToken(kLogits, {.topK = 1}, {}, {}, draw), 3);
    EXPECT_EQ(sampleToken(kLogits, {.topP = 1e-9}, {}, {}, draw), 3);
    EXPECT_EQ(sampleToken(kLogits, {.minP = 1}, {}, {}, draw), 3);
    EXPECT_EQ(sampleToken(kLogits, {.temperature = 1e-300}, {}, {}, draw), 3);
  }
}

/// Top-p counts the token that exceeds it: probabilities are 1/2, 1/4, 1/4.
TEST(Sampling, KeepsTheTokenThatCompletesTopP) {
  const Logits logits = {std::log(2.0f), 0, 0};
  std::map<int32_t, int> counts;
  for (uint64_t draw = 0; draw < 200; ++draw)
    ++counts[sampleToken(logits, {.topP = 0.6}, {}, {}, draw)];
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_EQ(counts[2], 0);
}

TEST(Sampling, IgnoresImpossibleTokens) {
  const Logits logits = {-kInfinity, 1, -kInfinity, 1, -kInfinity};
  for (uint64_t draw = 0; draw < 200; ++draw)
    EXPECT_EQ(sampleToken(logits, {.seed = 9}, {}, {}, draw) % 2, 1);
  EXPECT_EQ(sampleToken(logits, {.temperature = 0}, {}, {}, 0), 1);
}

TEST(Sampling, IsGreedyAtTemperatureZero) {
  const SamplingOptions greedy = {.temperature = 0};
  EXPECT_EQ(sampleToken(kLogits, greedy, {}, {}, 0), 3);
  EXPECT_EQ(sampleToken(Logits{1, 3, 3, 2}, greedy, {}, {}, 7), 1);
  EXPECT_EQ(sampleToken(Logits{-0.0f, 0.0f}, greedy, {}, {}, 0), 0);
  // Logits become {0.5, -2, 1.25, 1, -0.25, 0.75, -3, 0.25}: token 2 is best.
  EXPECT_EQ(sampleToken(kLogits,
                        {.temperature = 0, .repetitionPenalty = 2,
                         .presencePenalty = 0.5},
                        Tokens{3, 1}, Tokens{7}, 0),
            2);
}

/// Prompts of other programs, such as ids of images, may exceed the vocabulary.
TEST(Sampling, DoesNotPenalizeUnknownTokens) {
  const SamplingOptions options = {.temperature = 0, .repetitionPenalty = 9,
                                   .presencePenalty = 9};
  EXPECT_EQ(sampleToken(kLogits, options, Tokens{-1, 8}, Tokens{1000}, 0), 3);
}

/// A row's draws are a function of its seed and its number of tokens, whatever
/// is drawn for other rows in between.
TEST(Sampling, DrawsDoNotDependOnOtherRows) {
  const auto draw = [](uint64_t seed, uint64_t number) {
    return sampleToken(kLogits, {.seed = seed}, {}, {}, number);
  };
  std::vector<Tokens> alone(3);
  for (uint64_t seed = 0; seed < 3; ++seed)
    for (uint64_t number = 0; number < 64; ++number)
      alone[seed].push_back(draw(seed, number));
  for (uint64_t number = 64; number-- > 0;)
    for (uint64_t seed = 3; seed-- > 0;)
      EXPECT_EQ(draw(seed, number), alone[seed][number]);
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
}

/// All 64 bits of the seed and of the draw's number count.
TEST(Sampling, UsesAllBitsOfSeedAndDraw) {
  const auto tokens = [](uint64_t seed, uint64_t first) {
    Tokens drawn;
    for (uint64_t draw = first; draw < first + 64; ++draw)
      drawn.push_back(sampleToken(kLogits, {.seed = seed}, {}, {}, draw));
    return drawn;
  };
  const uint64_t high = uint64_t(1) << 63;
  EXPECT_NE(tokens(0, 0), tokens(high, 0));
  EXPECT_NE(tokens(0, 0), tokens(0, high));
  EXPECT_NE(tokens(0, 0), tokens(0, 64));
}

TEST(Sampling, ReportsLogProbabilities) {
  const std::vector<double> p = probabilitiesOf(kLogits, {});
  const std::vector<TokenLogProb> found = logProbs(kLogits, 6, 3);
  ASSERT_EQ(found.size(), 4u);
  const Tokens expected = {6, 3, 7, 2};
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].token, expected[i]);
    EXPECT_NEAR(found[i].logProb, std::log(p[size_t(expected[i])]), 1e-12);
  }
}

TEST(Sampling, ReportsAtMostTheVocabulary) {
  const std::vector<TokenLogProb> all = logProbs(Logits{1, 2, 2}, 0, 100);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[1].token, 1);
  EXPECT_EQ(all[2].token, 2);
  const double sum = std::accumulate(
      all.begin() + 1, all.end(), 0.0,
      [](double sum, const TokenLogProb &one) {
        return sum + std::exp(one.logProb);
      });
  EXPECT_NEAR(sum, 1, 1e-12);
}

/// Large logits, whose exponentials overflow f64.
TEST(Sampling, ReportsLogProbabilitiesOfLargeLogits) {
  const std::vector<TokenLogProb> found = logProbs(Logits{1e5f, 1e5f}, 1, 1);
  EXPECT_NEAR(found[0].logProb, -std::log(2), 1e-9);
}

TEST(Sampling, AcceptsTheLimitsOfOptions) {
  EXPECT_TRUE(SamplingOptions().check().isOk());
  const SamplingOptions least = {.temperature = 0, .topP = 1e-9, .minP = 0,
                                 .repetitionPenalty = 1e-9,
                                 .presencePenalty = -100};
  EXPECT_TRUE(least.check().isOk());
  const SamplingOptions most = {.temperature = 1e9, .topK = 1 << 20, .topP = 1,
                                .minP = 1, .repetitionPenalty = 1e9,
                                .presencePenalty = 100};
  EXPECT_TRUE(most.check().isOk());
}

TEST(Sampling, RefusesOptionsOutOfRange) {
  const auto expectRefused = [](const SamplingOptions &options,
                                std::string_view message) {
    const Status status = options.check();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), message);
  };
  const double none = std::numeric_limits<double>::quiet_NaN();
  const double much = std::numeric_limits<double>::infinity();
  for (double value : {-0.5, none, much})
    expectRefused({.temperature = value},
                  fmt::format("temperature {} must be finite and at least 0",
                              value));
  expectRefused({.topK = -1}, "top_k -1 must be at least 0");
  for (double value : {0.0, 1.5, none})
    expectRefused({.topP = value},
                  fmt::format("top_p {} must be above 0 and at most 1", value));
  for (double value : {-0.1, 1.1, none})
    expectRefused({.minP = value},
                  fmt::format("min_p {} must be from 0 to 1", value));
  for (double value : {0.0, -1.0, none, much})
    expectRefused(
        {.repetitionPenalty = value},
        fmt::format("repetition_penalty {} must be finite and above 0", value));
  for (double value : {-101.0, 101.0, none})
    expectRefused(
        {.presencePenalty = value},
        fmt::format("presence_penalty {} must be from -100 to 100", value));
}

} // namespace
} // namespace qlora
