// SPDX-License-Identifier: MIT

#include "frontend/ModelIdentity.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "frontend/DecoderWeights.h"
#include "frontend/JsonFields.h"
#include "frontend/ModelFolder.h"

using nlohmann::json, nlohmann::ordered_json;

namespace qlora {

/// Maximum number of differences in an error message.
static constexpr size_t kMostNamed = 3;

static const char *biasedLinears(const ModelConfig &config) {
  if (config.outputBias)
    return "q, k, v, o";
  return config.qkvBias ? "q, k, v" : "none";
}

/// Returns the indices of layers with a value other than 0: "all", or "0,
/// 28-35".
template <typename T>
static std::string layersWith(const std::vector<T> &values) {
  std::string text;
  const size_t count = values.size();
  for (size_t first = 0, end = 0; first < count; first = end + 1) {
    end = first;
    while (end < count && values[end])
      ++end;
    if (end - first == count)
      return "all";
    if (end == first)
      continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
    if (end - first > 1)
      text += fmt::format("-{}", end - 1);
  }
  return text;
}

static ordered_json onlyIf(bool isThere, ordered_json value) {
  return isThere ? value : ordered_json();
}

/// Describes a RoPE configuration. `prefix` is the start of its keys:
/// "sliding_" for layers with a window, else empty.
static void describeRope(const RopeConfig &rope, const std::string &prefix,
                         ordered_json &model) {
  using K = RopeKind;
  const auto put = [&](const char *key, ordered_json value) {
    model[prefix + key] = std::move(value);
  };
  const auto isOneOf = [&](std::initializer_list<K> kinds) {
    return std::ranges::find(kinds, rope.kind) != kinds.end();
  };
  const bool ramps = rope.kind == K::kLlama3, yarn = rope.kind == K::kYarn;
  put("rope_type", ropeKindName(rope.kind));
  put("rope_theta", rope.theta);
  put("rope_factor", onlyIf(rope.kind != K::kDefault, rope.factor));
  put("low_freq_factor", onlyIf(ramps, rope.lowFreqFactor));
  put("high_freq_factor", onlyIf(ramps, rope.highFreqFactor));
  put("original_max_position_embeddings",
      onlyIf(!isOneOf({K::kDefault, K::kLinear}), rope.originalMaxPositions));
  put("beta_fast", onlyIf(yarn, rope.betaFast));
  put("beta_slow", onlyIf(yarn, rope.betaSlow));
  put("truncate", onlyIf(yarn, rope.truncate));
  put("rope_attention_factor",
      onlyIf(isOneOf({K::kYarn, K::kLongRope}), rope.attentionFactor));
  for (const auto &[key, factors] :
       {std::pair("short_factor", &rope.shortFactors),
        std::pair("long_factor", &rope.longFactors)})
    put(key, onlyIf(!factors->empty(), fmt::format("{}", fmt::join(*factors,
                                                                   " "))));
}

static void describePositions(const ModelConfig &config, ordered_json &model) {
  for (size_t i = 0; i < config.rotaries.size(); ++i)
    describeRope(config.rotaries[i].rope, i == 0 ? "" : "sliding_", model);
  if (config.rotaries.empty())
    return;
  const int64_t rotated = config.rotaries.front().rope.rotated;
  model["rotated_dim"] = onlyIf(rotated != config.headDim, rotated);
  std::vector<bool> unrotated;
  for (int rotary : config.rotaryOfLayer)
    unrotated.push_back(rotary < 0);
  const std::string layers = layersWith(unrotated);
  model["no_rope_layers"] = onlyIf(!layers.empty(), layers);
}

static void describeFactors(const ModelConfig &config, ordered_json &model) {
  const double usual = std::pow(static_cast<double>(config.headDim), -0.5);
  model["embedding_scale"] =
      onlyIf(config.embeddingScale != 1, config.embeddingScale);
  model["residual_scale"] =
      onlyIf(config.residualScale != 1, config.residualScale);
  model["attention_scale"] =
      onlyIf(config.attentionScale != usual, config.attentionScale);
  model["attention_cap"] = onlyIf(config.attentionCap, config.attentionCap);
  model["logit_scale"] = onlyIf(config.logitScale != 1, config.logitScale);
  model["logit_cap"] = onlyIf(config.logitCap, config.logitCap);
}

ordered_json describeArithmetic(const ModelConfig &config) {
  const Family &family = *config.family;
  ordered_json model = {
      {"family", family.architecture},
      {"vocab_size", config.vocabSize},
      {"hidden_size", config.hiddenSize},
      {"intermediate_size", config.innerSize},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kvHeads},
      {"head_dim", config.headDim},
      {family.keys.normEpsilon, config.normEpsilon},
      {"tie_word_embeddings", config.tied},
      {"attention_bias", biasedLinears(config)},
      {"mlp_bias", config.mlpBias},
      {"qk_norm", family.mixer.headNorms != HeadNorms::kNone},
      {"stored_in_4bit", config.storedFormat && config.storedFormat->bits == 4},
  };
  describePositions(config, model);
  describeFactors(config, model);
  model["activation"] = onlyIf(!family.mlp.gated || config.activation != "silu",
                               config.activation);
  if (config.wrapper)
    model["text_model"] = config.wrapper->textModel;
  model["positions"] =
      onlyIf(family.positions == PositionKind::kLearned, "learned");
  model["linear_layout"] = onlyIf(
      family.layout == LinearLayout::kInOut && !config.storedFormat, "in_out");
  const int64_t window = std::ranges::max(config.windows);
  model["sliding_window"] = onlyIf(window, window);
  model["sliding_layers"] = onlyIf(window, layersWith(config.windows));
  describeExperts(config, model);
  if (config.givenRouterLogits)
    model[kRouterLogits] = *config.givenRouterLogits;
  return model;
}

static std::string valueText(const json &value) {
  if (value.is_null())
    return "none";
  if (value.is_number_float())
    return fmt::format("{}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : shortDump(value);
}

static std::vector<std::string> differingKeys(const Options &options,
                                              const ordered_json &found) {
  std::vector<std::string> keys;
  for (const auto &[key, value] : found.items())
    if (json(value) != json(options.recordedMetadata(key)))
      keys.push_back(key);
  return keys;
}

static Status compare(const Options &options, const ordered_json &found,
                      const std::string &folder,
                      const std::string &modulePath) {
  const std::vector<std::string> keys = differingKeys(options, found);
  if (keys.empty())
    return Status::ok();
  std::string others;
  for (size_t i = 1; i < std::min(keys.size(), kMostNamed); ++i)
    others +=
        fmt::format("; {} is {}, not {}", keys[i], valueText(found[keys[i]]),
                    valueText(options.recordedMetadata(keys[i])));
  if (keys.size() > kMostNamed)
    others += fmt::format("; and {} more", keys.size() - kMostNamed);
  return Status::invalid(
      "'{}/config.json': {} is {}, but '{}' was compiled for {}{}; import and "
      "compile this model, or give the folder of the compiled model with "
      "--model-name-or-path",
      folder, keys[0], valueText(found[keys[0]]), modulePath,
      valueText(options.recordedMetadata(keys[0])), others);
}

Status checkModelIdentity(const Options &options,
                          const std::string &modulePath) {
  const std::string folder = options.text("model_name_or_path");
  if (options.recordedMetadata("family").is_null() || folder.empty())
    return Status::ok();
  if (options.recordedMetadata("stored_in_4bit").is_null())
    return Status::invalid("'{}' does not record its model, because an older "
                           "qloracc made it; import and compile the model "
                           "again",
                           modulePath);
  if (std::error_code ignored; !std::filesystem::exists(folder, ignored))
    return Status::notFound("no model folder '{}'; give it with "
                            "--model-name-or-path DIR",
                            folder);
  QLORA_RETURN_IF_ERROR(checkModelFolder(folder));
  json instead = json::object(); // what a flag has replaced when importing
  if (const json given = options.recordedMetadata(kRouterLogits);
      !given.is_null())
    instead[kRouterLogits] = given;
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config,
                         readHfConfig(folder, instead));
  QLORA_RETURN_IF_ERROR(
      compare(options, describeArithmetic(config), folder, modulePath));
  QLORA_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(folder));
  std::vector<std::string> saidAtImport;
  return findWeights(config, files, saidAtImport).status();
}

} // namespace qlora
