// SPDX-License-Identifier: MIT

// The table of llama.cpp's architectures, and what they cannot compute.

#include "frontend/GgufFamilies.h"

#include <algorithm>
#include <cmath>

namespace qlora {

static constexpr GgufFamily kFamilies[] = {
    {.modelType = "llama",
     .architecture = "llama",
     .permutesHeads = true,
     .hasOutputBias = true,
     .hasMlpBias = true,
     .hasRopeFactors = true,
     .hasLongRope = true},
    {.modelType = "mistral",
     .architecture = "llama",
     .permutesHeads = true,
     .hasRopeFactors = true,
     .hasLongRope = true},
    {.modelType = "mixtral",
     .architecture = "llama",
     .permutesHeads = true,
     .normalizesExperts = true,
     .hasRopeFactors = true,
     .hasLongRope = true},
    {.modelType = "qwen2", .architecture = "qwen2", .hasFullHeads = true},
    {.modelType = "qwen3", .architecture = "qwen3"},
    {.modelType = "qwen2_moe",
     .architecture = "qwen2moe",
     .hasFullHeads = true,
     .canTieHead = false,
     .namesExpertSize = true},
    {.modelType = "qwen3_moe",
     .architecture = "qwen3moe",
     .normalizesExperts = true,
     .namesExpertSize = true},
    {.modelType = "gemma2",
     .architecture = "gemma2",
     .mustTieHead = true,
     .window = GgufWindow::kPeriodic,
     .windowPeriod = 2,
     .wideScaleLayers = 46,
     .activation = "gelu_tanh"},
    {.modelType = "gemma3_text",
     .architecture = "gemma3",
     .window = GgufWindow::kPeriodic,
     .windowPeriod = 6,
     .wideScaleLayers = 62,
     .activation = "gelu_tanh"},
    {.modelType = "phi3",
     .architecture = "phi3",
     .hasFullHeads = true,
     .hasLongRope = true,
     .needsWindowKey = true},
    {.modelType = "olmo2",
     .architecture = "olmo2",
     .hasFullHeads = true,
     .canTieHead = false},
    {.modelType = "granite",
     .architecture = "granite",
     .permutesHeads = true,
     .hasOutputBias = true,
     .hasMlpBias = true,
     .hasRopeFactors = true,
     .hasLongRope = true,
     .attentionScale = GgufAttentionScale::kKey},
    {.modelType = "smollm3",
     .architecture = "smollm3",
     .permutesHeads = true},
    {.modelType = "starcoder2",
     .architecture = "starcoder2",
     .hasOutputBias = true,
     .hasMlpBias = true,
     .needsBiases = true,
     .hasFullHeads = true,
     .activation = "gelu_tanh"},
    {.modelType = "stablelm",
     .architecture = "stablelm",
     .hasFullHeads = true,
     .canTieHead = false},
    {.modelType = "gpt2",
     .architecture = "gpt2",
     .hasOutputBias = true,
     .hasMlpBias = true,
     .needsBiases = true,
     .hasFullHeads = true,
     .activation = "gelu_tanh"},
    {.modelType = "gpt_oss",
     .architecture = "gpt-oss",
     .hasOutputBias = true,
     .needsBiases = true,
     .canTieHead = false,
     .normalizesExperts = true,
     .namesExpertSize = true,
     .window = GgufWindow::kPeriodic,
     .windowPeriod = 2,
     .mlpNorm = "post_attention_norm",
     .gluLimit = 7,
     .gluSlope = 1.702},
};

/// Layers of SmolLM3 without RoPE in llama.cpp: each fourth one.
static constexpr int64_t kUnrotatedPeriod = 4;

static Status refuse(const GgufFamily &family, const std::string &what) {
  return Status::unavailable("llama.cpp's architecture {} has no {}; export "
                             "with --to merged instead",
                             family.architecture, what);
}

static Status checkLinears(const GgufFamily &family,
                           const ModelConfig &config) {
  if (config.outputBias && !family.hasOutputBias)
    return refuse(family, "bias of the attention's output");
  if (config.mlpBias && !family.hasMlpBias)
    return refuse(family, "biases of the MLP");
  const bool hasMlp = !config.experts.count;
  if (family.needsBiases && (!config.qkvBias || !config.outputBias ||
                             (hasMlp && !config.mlpBias)))
    return refuse(family, "model without biases");
  if (config.activation != family.activation)
    return refuse(family, fmt::format("activation {}", config.activation));
  if (family.hasFullHeads &&
      config.heads * config.headDim != config.hiddenSize)
    return refuse(family, fmt::format("{} heads of {} values with a width of "
                                      "{}",
                                      config.heads, config.headDim,
                                      config.hiddenSize));
  if (config.tied ? false : family.mustTieHead)
    return refuse(family, "LM head apart from the embedding");
  return Status::ok();
}

static Status checkExperts(const GgufFamily &family,
                           const ModelConfig &config) {
  const ExpertsConfig &experts = config.experts;
  if (!experts.count)
    return Status::ok();
  if (experts.normalized != family.normalizesExperts)
    return refuse(family, experts.normalized
                              ? "normalized weights of experts"
                              : "weights of experts without normalization");
  if (!std::ranges::all_of(experts.layers, [](bool has) { return has; }))
    return refuse(family, "layers without experts");
  if (experts.glu.limit != family.gluLimit ||
      experts.glu.slope != family.gluSlope)
    return refuse(family, fmt::format("clamped activation with limit {} and "
                                      "slope {}",
                                      experts.glu.limit, experts.glu.slope));
  return Status::ok();
}

/// Checks one kind of RoPE, and warns of what depends on the context.
static Status checkRope(const GgufFamily &family, const RopeConfig &rope,
                        std::vector<std::string> &warnings) {
  switch (rope.kind) {
  case RopeKind::kDefault:
  case RopeKind::kLinear:
    break;
  case RopeKind::kYarn:
    if (!rope.truncate)
      warnings.push_back("llama.cpp rounds the ends of yarn's ramp, and this "
                         "model has 'truncate: false'");
    break;
  case RopeKind::kDynamic:
    warnings.push_back(fmt::format(
        "llama.cpp has no dynamic RoPE: rows of more than {} tokens get other "
        "positions",
        rope.originalMaxPositions));
    break;
  case RopeKind::kLongRope:
    if (!family.hasLongRope)
      return refuse(family, "RoPE of kind longrope");
    warnings.push_back(fmt::format(
        "llama.cpp chooses longrope's factors by its context size: the ones "
        "for short rows up to -c {}, else the ones for long rows",
        rope.originalMaxPositions));
    break;
  case RopeKind::kLlama3:
    if (!family.hasRopeFactors)
      return refuse(family, "RoPE of kind llama3");
    break;
  }
  return Status::ok();
}

static Status checkPositions(const GgufFamily &family,
                             const ModelConfig &config,
                             std::vector<std::string> &warnings) {
  if (!config.maxPositions)
    return Status::invalid("config.json has no '{}', which llama.cpp needs; "
                           "add the longest context",
                           config.family->keys.maxPositions);
  if (!config.rotaries.empty())
    QLORA_RETURN_IF_ERROR(
        checkRope(family, config.rotaries.front().rope, warnings));
  // Only the first kind of layers has keys for scaled positions.
  for (size_t i = 1; i < config.rotaries.size(); ++i)
    if (config.rotaries[i].rope.kind != RopeKind::kDefault)
      return refuse(family, "scaled RoPE in layers with a window");
  const RotaryRule rule = config.family->mixer.rotary;
  if (rule != RotaryRule::kSkipping)
    return Status::ok();
  for (int64_t layer = 0; layer < config.layers; ++layer)
    if ((config.rotaryOfLayer[static_cast<size_t>(layer)] < 0) !=
        ((layer + 1) % kUnrotatedPeriod == 0))
      return refuse(family,
                    "layers without RoPE apart from each fourth one");
  return Status::ok();
}

static Status checkWindows(const GgufFamily &family, const ModelConfig &config,
                           std::vector<std::string> &warnings) {
  const int64_t window = std::ranges::max(config.windows);
  if (!window)
    return Status::ok();
  if (family.window == GgufWindow::kIgnored) {
    if (window < config.maxPositions)
      warnings.push_back(fmt::format(
          "llama.cpp ignores this model's attention window of {} tokens: "
          "longer rows get other results",
          window));
    return Status::ok();
  }
  for (int64_t layer = 0; layer < config.layers; ++layer)
    if ((config.windows[static_cast<size_t>(layer)] == 0) !=
        ((layer + 1) % family.windowPeriod == 0))
      return refuse(family, fmt::format("windows apart from the pattern of {} "
                                        "layers",
                                        family.windowPeriod));
  return Status::ok();
}

double ggufQueryFactor(const GgufFamily &family, const ModelConfig &config) {
  if (family.attentionScale == GgufAttentionScale::kKey)
    return 1;
  const bool isWide = family.wideScaleLayers == config.layers;
  const int64_t width =
      isWide ? config.hiddenSize / config.heads : config.headDim;
  const double factor =
      config.attentionScale * std::sqrt(static_cast<double>(width));
  return std::abs(factor - 1) < 1e-6 ? 1 : factor; // a rounded square root
}

StatusOr<const GgufFamily *>
findGgufFamily(const ModelConfig &config, std::vector<std::string> &warnings) {
  const auto found = std::ranges::find(kFamilies, config.family->modelType,
                                       &GgufFamily::modelType);
  if (found == std::end(kFamilies))
    return Status::unavailable("{} has no architecture in llama.cpp; export "
                               "with --to merged instead",
                               config.family->architecture);
  QLORA_RETURN_IF_ERROR(checkLinears(*found, config));
  QLORA_RETURN_IF_ERROR(checkExperts(*found, config));
  QLORA_RETURN_IF_ERROR(checkPositions(*found, config, warnings));
  QLORA_RETURN_IF_ERROR(checkWindows(*found, config, warnings));
  return found;
}

} // namespace qlora
