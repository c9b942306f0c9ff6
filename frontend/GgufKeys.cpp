// SPDX-License-Identifier: MIT

// Keys of GGUF files, from a model's configuration.

#include "frontend/GgufKeys.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace qlora {

namespace {

/// Appends keys with the architecture's name in front.
class Keys {
public:
  explicit Keys(std::string_view architecture)
      : prefix(fmt::format("{}.", architecture)) {
    keys.emplace_back("general.architecture", std::string(architecture));
  }

  void count(const char *name, int64_t value) {
    keys.emplace_back(prefix + name, static_cast<uint32_t>(value));
  }
  void number(const char *name, double value) {
    keys.emplace_back(prefix + name, static_cast<float>(value));
  }
  void text(const char *name, std::string value) {
    keys.emplace_back(prefix + name, std::move(value));
  }

  GgufMetadata keys;

private:
  const std::string prefix;
};

} // namespace

static void addSizes(const ModelConfig &config, const GgufFamily &family,
                     Keys &keys) {
  const ExpertsConfig &experts = config.experts;
  keys.count("vocab_size", config.vocabSize);
  keys.count("context_length", config.maxPositions);
  keys.count("embedding_length", config.hiddenSize);
  keys.count("block_count", config.layers);
  keys.count("feed_forward_length", experts.count && !family.namesExpertSize
                                        ? experts.innerSize
                                        : config.innerSize);
  if (!experts.count)
    return;
  keys.count("expert_count", experts.count);
  keys.count("expert_used_count", experts.chosen);
  if (family.namesExpertSize)
    keys.count("expert_feed_forward_length", experts.innerSize);
  if (experts.sharedSize)
    keys.count("expert_shared_feed_forward_length", experts.sharedSize);
}

static void addAttention(const ModelConfig &config, const GgufFamily &family,
                         Keys &keys) {
  keys.count("attention.head_count", config.heads);
  keys.count("attention.head_count_kv", config.kvHeads);
  keys.count("attention.key_length", config.headDim);
  keys.count("attention.value_length", config.headDim);
  keys.number(config.family->norm == NormKind::kLayer
                  ? "attention.layer_norm_epsilon"
                  : "attention.layer_norm_rms_epsilon",
              config.normEpsilon);
  if (family.attentionScale == GgufAttentionScale::kKey)
    keys.number("attention.scale", config.attentionScale);
  const int64_t window = std::ranges::max(config.windows);
  if (family.needsWindowKey ||
      (family.window == GgufWindow::kPeriodic && window))
    keys.count("attention.sliding_window", window);
  if (config.attentionCap)
    keys.number("attn_logit_softcapping", config.attentionCap);
}

/// The factor of cos and sin that llama.cpp computes for yarn by itself.
static double ownYarnFactor(double factor) {
  return 1 + 0.1 * std::log(factor);
}

static void addScaledRope(const RopeConfig &rope, Keys &keys) {
  switch (rope.kind) {
  case RopeKind::kDefault:
  case RopeKind::kDynamic:
  case RopeKind::kLlama3: // its factors are a tensor
    return;
  case RopeKind::kLinear:
    keys.text("rope.scaling.type", "linear");
    keys.number("rope.scaling.factor", rope.factor);
    return;
  case RopeKind::kYarn: {
    keys.text("rope.scaling.type", "yarn");
    keys.number("rope.scaling.factor", rope.factor);
    keys.count("rope.scaling.original_context_length",
               rope.originalMaxPositions);
    keys.number("rope.scaling.yarn_beta_fast", rope.betaFast);
    keys.number("rope.scaling.yarn_beta_slow", rope.betaSlow);
    const double rest = rope.attentionFactor / ownYarnFactor(rope.factor);
    if (std::abs(rest - 1) > 1e-6)
      keys.number("rope.scaling.attn_factor", rest);
    return;
  }
  case RopeKind::kLongRope:
    keys.text("rope.scaling.type", "longrope");
    keys.count("rope.scaling.original_context_length",
               rope.originalMaxPositions);
    keys.number("rope.scaling.attn_factor", rope.attentionFactor);
    return;
  }
}

static void addRope(const ModelConfig &config, Keys &keys) {
  if (config.rotaries.empty())
    return;
  const RopeConfig &rope = config.rotaries.front().rope;
  keys.count("rope.dimension_count", rope.rotated);
  keys.number("rope.freq_base", rope.theta);
  if (config.rotaries.size() > 1)
    keys.number("rope.freq_base_swa", config.rotaries[1].rope.theta);
  addScaledRope(rope, keys);
}

GgufMetadata ggufKeys(const ModelConfig &config, const GgufFamily &family) {
  Keys keys(family.architecture);
  addSizes(config, family, keys);
  addAttention(config, family, keys);
  addRope(config, keys);
  if (config.logitCap)
    keys.number("final_logit_softcapping", config.logitCap);
  if (*config.family->keys.logitDivisor)
    keys.number("logit_scale", 1 / config.logitScale);
  if (*config.family->keys.embeddingScale)
    keys.number("embedding_scale", config.embeddingScale);
  if (*config.family->keys.residualScale)
    keys.number("residual_scale", config.residualScale);
  return std::move(keys.keys);
}

void addRopeFactors(const ModelConfig &config,
                    std::vector<GgufSource> &sources) {
  if (config.rotaries.empty())
    return;
  const RopeConfig &rope = config.rotaries.front().rope;
  const auto add = [&](const char *name, std::vector<float> values) {
    const auto count = static_cast<int64_t>(values.size());
    sources.push_back(
        {{name, GgufType::kF32, {count}}, {}, std::move(values)});
  };
  if (rope.kind == RopeKind::kLlama3) {
    RopeConfig plain = rope;
    plain.kind = RopeKind::kDefault;
    std::vector<float> factors = inverseFrequencies(plain);
    for (size_t i = 0; i < factors.size(); ++i)
      factors[i] /= config.rotaries.front().frequencies[i];
    add("rope_freqs.weight", std::move(factors));
  }
  if (rope.kind == RopeKind::kLongRope) {
    add("rope_factors_long.weight",
        {rope.longFactors.begin(), rope.longFactors.end()});
    add("rope_factors_short.weight",
        {rope.shortFactors.begin(), rope.shortFactors.end()});
  }
}

} // namespace qlora
