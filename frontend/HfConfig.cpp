// SPDX-License-Identifier: MIT

// Reads config.json into a ModelConfig.

#include "frontend/HfConfig.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "frontend/ConfigKeys.h"
#include "frontend/ConfigLayers.h"
#include "frontend/ConfigQuantization.h"
#include "frontend/JsonFields.h"
#include "frontend/ModelFolder.h"
#include "runtime/Base/UserFiles.h"

using nlohmann::json;

namespace qlora {

/// Upper limit of the number of layers, so that a malformed count cannot
/// allocate huge lists. No model has nearly as many.
static constexpr int64_t kMaxLayers = 65536;

/// Names of activations in transformers, each with its name in
/// model.activation.
static constexpr std::pair<std::string_view, std::string_view> kActivations[] =
    {{"gelu", "gelu"},
     {"gelu_new", "gelu_tanh"},
     {"gelu_pytorch_tanh", "gelu_tanh"},
     {"relu", "relu"},
     {"relu2", "relu2"},
     {"silu", "silu"},
     {"swish", "silu"}};

namespace {
/// A kind of dropout: the importer's flag, the key in config.json and the field
/// of the rate.
struct DropoutKind {
  std::string_view name;
  const char *ConfigNames::*key;
  double DropoutConfig::*rate;
};
} // namespace

static constexpr DropoutKind kDropouts[] = {
    {"embedding_dropout", &ConfigNames::embeddingDropout,
     &DropoutConfig::embedding},
    {"residual_dropout", &ConfigNames::residualDropout,
     &DropoutConfig::residual},
    {"attention_dropout", &ConfigNames::attentionDropout,
     &DropoutConfig::attention}};

static Status readSizes(const JsonFields &fields, ModelConfig &config) {
  const Family &family = *config.family;
  const ConfigNames &keys = family.keys;
  QLORA_ASSIGN_OR_RETURN(config.vocabSize, fields.integer("vocab_size", 1));
  QLORA_ASSIGN_OR_RETURN(config.hiddenSize, fields.integer(keys.hiddenSize, 1));
  std::optional<int64_t> inner, positions;
  if (family.defaults.innerFactor)
    inner = family.defaults.innerFactor * config.hiddenSize;
  if (family.positions == PositionKind::kRotary)
    positions = 0;
  QLORA_ASSIGN_OR_RETURN(config.innerSize,
                         fields.integer(keys.innerSize, 1, inner));
  QLORA_ASSIGN_OR_RETURN(config.layers, fields.integer(keys.layers, 1));
  QLORA_ASSIGN_OR_RETURN(config.maxPositions,
                         fields.integer(keys.maxPositions, 1, positions));
  QLORA_ASSIGN_OR_RETURN(
      config.normEpsilon,
      fields.positive(keys.normEpsilon, family.defaults.normEpsilon));
  if (config.layers > kMaxLayers)
    return Status::invalid("'{}' is {}; at most {} are supported", keys.layers,
                           config.layers, kMaxLayers);
  return Status::ok();
}

static Status readHeads(const JsonFields &fields, ModelConfig &config) {
  const Family &family = *config.family;
  QLORA_ASSIGN_OR_RETURN(config.heads, fields.integer(family.keys.heads, 1));
  // Null means the number of heads in every family. A missing key means the
  // family's default.
  const char *kvKey = "num_key_value_heads";
  const int64_t familyKvHeads = family.defaults.kvHeads;
  const bool useHeads = fields.mentions(kvKey) || !familyKvHeads;
  QLORA_ASSIGN_OR_RETURN(
      config.kvHeads,
      fields.integer(kvKey, 1, useHeads ? config.heads : familyKvHeads));
  if (config.heads % config.kvHeads)
    return Status::invalid("'{}' is {}, not a multiple of the {} key-value "
                           "heads",
                           family.keys.heads, config.heads, config.kvHeads);
  int64_t headDim = family.defaults.headDim;
  if (!headDim && !fields.find("head_dim")) {
    if (config.hiddenSize % config.heads)
      return Status::invalid("'{}' {} is not a multiple of the {} heads and "
                             "'head_dim' is missing",
                             family.keys.hiddenSize, config.hiddenSize,
                             config.heads);
    headDim = config.hiddenSize / config.heads;
  }
  QLORA_ASSIGN_OR_RETURN(config.headDim,
                         fields.integer("head_dim", 1, headDim));
  return Status::ok();
}

/// Reads the padding token. As in torch, a negative id counts from the end. An
/// id outside of the vocabulary means no padding row, and is not an error.
static Status readPadding(const JsonFields &fields, ModelConfig &config) {
  constexpr const char *kKey = "pad_token_id";
  const ConfigDefaults &defaults = config.family->defaults;
  const bool isNull = fields.mentions(kKey) && !fields.find(kKey);
  if (!defaults.padsEmbedding || isNull)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(
      int64_t token,
      fields.integer(kKey, std::numeric_limits<int32_t>::min(),
                     defaults.paddingToken < 0 ? config.vocabSize
                                               : defaults.paddingToken));
  if (token < 0)
    token += config.vocabSize;
  if (token >= 0 && token < config.vocabSize)
    config.paddingToken = token;
  return Status::ok();
}

/// Reads which linears have a bias. Refuses keys that turn on biases which the
/// family does not have.
static Status readBiases(const JsonFields &fields, ModelConfig &config) {
  const Family &family = *config.family;
  const ConfigNames &keys = family.keys;
  struct Bias {
    const char *key;
    BiasRule rule;
    bool &there;
  };
  const Bias biases[] = {
      {keys.inputBias, family.mixer.inputBias, config.qkvBias},
      {keys.outputBias, family.mixer.outputBias, config.outputBias},
      {keys.mlpBias, family.mlp.bias, config.mlpBias}};
  for (const auto &[key, rule, there] : biases) {
    QLORA_ASSIGN_OR_RETURN(
        const bool value,
        fields.boolean(key, rule == BiasRule::kUnlessFalse));
    // Several linears may share a key. True is valid if one may have a bias.
    const bool isOfOthers = std::ranges::any_of(biases, [&](const Bias &other) {
      return other.rule != BiasRule::kNever &&
             std::string_view(key) == other.key;
    });
    if (value && rule == BiasRule::kNever && !isOfOthers)
      return Status::invalid("'{}' is true, but {} has no such bias; set it "
                             "to false",
                             key, family.architecture);
    there = rule == BiasRule::kAlways || (rule != BiasRule::kNever && value);
  }
  return Status::ok();
}

static Status readActivation(const JsonFields &fields, ModelConfig &config) {
  const Family &family = *config.family;
  QLORA_ASSIGN_OR_RETURN(
      const std::string name,
      fields.string(family.keys.activation, family.defaults.activation));
  std::vector<std::string_view> names;
  for (const auto &[known, activation] : kActivations) {
    if (name == known)
      config.activation = activation;
    names.push_back(known);
  }
  if (!config.activation.empty())
    return Status::ok();
  return Status::invalid("'{}' is '{}'; supported are {}",
                         family.keys.activation, name,
                         fmt::join(names, ", "));
}

/// Reads a factor, which is `missing` if the family has no key for it or
/// config.json no value.
static Status readFactor(const JsonFields &fields, const char *key,
                         double missing, double &factor) {
  factor = missing;
  if (*key) {
    QLORA_ASSIGN_OR_RETURN(factor, fields.positive(key, missing));
  }
  return Status::ok();
}

/// Reads the cap c of c * tanh(x / c). Null means no cap. If the key is
/// missing, the cap is `missing`.
static Status readCap(const JsonFields &fields, const char *key, double missing,
                      double &cap) {
  if (!*key)
    return Status::ok();
  const bool isNull = fields.mentions(key) && !fields.find(key);
  QLORA_ASSIGN_OR_RETURN(cap, fields.positive(key, isNull ? 0 : missing));
  return Status::ok();
}

static Status readFactors(const JsonFields &fields, ModelConfig &config) {
  const Family &family = *config.family;
  const ConfigNames &keys = family.keys;
  const ConfigDefaults &defaults = family.defaults;
  double queryWidth = 0, divisor = 1;
  QLORA_RETURN_IF_ERROR(readFactor(
      fields, keys.queryWidth,
      defaults.queryWidth ? defaults.queryWidth : double(config.headDim),
      queryWidth));
  QLORA_RETURN_IF_ERROR(readFactor(
      fields, keys.attentionScale,
      defaults.attentionScale ? defaults.attentionScale
                              : std::pow(queryWidth, -0.5),
      config.attentionScale));
  QLORA_RETURN_IF_ERROR(readFactor(fields, keys.logitDivisor, 1, divisor));
  config.logitScale = 1 / divisor;
  QLORA_RETURN_IF_ERROR(readFactor(
      fields, keys.embeddingScale,
      family.scalesEmbedding ? std::sqrt(double(config.hiddenSize)) : 1,
      config.embeddingScale));
  QLORA_RETURN_IF_ERROR(
      readFactor(fields, keys.residualScale, 1, config.residualScale));
  QLORA_RETURN_IF_ERROR(readCap(fields, keys.attentionCap,
                                defaults.attentionCap, config.attentionCap));
  return readCap(fields, keys.logitCap, defaults.logitCap, config.logitCap);
}

static Status readDropout(const JsonFields &fields, ModelConfig &config) {
  const ConfigNames &keys = config.family->keys;
  for (const auto &[name, key, rate] : kDropouts)
    if (*(keys.*key)) {
      QLORA_ASSIGN_OR_RETURN(config.dropout.*rate,
                             fields.probability(
                                 keys.*key, config.family->defaults.dropout));
    }
  return Status::ok();
}

/// Replaces keys of config.json by the importer's flags, `instead`. Refuses a
/// flag for a dropout or for experts that the family lacks.
static Status replaceKeys(const Family &family, const json &instead,
                          json &root) {
  for (const auto &[name, value] : instead.items()) {
    if (name == kRouterLogits) {
      if (!family.experts.isThere())
        return Status::invalid("{} has no experts; remove {}",
                               family.architecture, name);
      root[name] = value;
      continue;
    }
    const auto kind = std::ranges::find(kDropouts, name, &DropoutKind::name);
    assert(kind != std::end(kDropouts) && "the importer's flags are of these");
    const char *key = family.keys.*(kind->key);
    if (!*key)
      return Status::invalid("{} has no {}; remove the option",
                             family.architecture, kind->name);
    root[key] = value;
  }
  return Status::ok();
}

/// Returns the text model's keys: those of `text_config` in a multimodal model,
/// else all keys. Quantization may be declared inside or outside of
/// text_config. Ignores `tie_word_embeddings` inside text_config.
static StatusOr<json> takeTextModel(json root, ModelConfig &config) {
  const auto text = root.find("text_config");
  if (text == root.end() || text->empty())
    return root;
  if (!text->is_object())
    return Status::invalid("'text_config' is {}; expected an object",
                           shortDump(*text));
  std::vector<std::string> parts;
  for (const auto &[name, value] : root.items())
    if (name.ends_with("_config") && value.is_object() &&
        name != "text_config" && name != "quantization_config")
      parts.push_back(name);
  QLORA_ASSIGN_OR_RETURN(const std::string type,
                         JsonFields(root).string("model_type", ""));
  QLORA_ASSIGN_OR_RETURN(config.wrapper, findWrapper(type));
  config.warnings.push_back(fmt::format(
      "only the text model of '{}' is imported; not imported: {}. Modules and "
      "adapters are named as in {}, which AutoModelForCausalLM makes from the "
      "folder: {}",
      type,
      parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", ")),
      config.wrapper->architecture, config.modulePath("model.layers")));
  json taken = *text;
  taken["tie_word_embeddings"] =
      root.value("tie_word_embeddings", json(config.wrapper->tied));
  if (root.contains("quantization_config") &&
      !taken.contains("quantization_config"))
    taken["quantization_config"] = root["quantization_config"];
  if (!taken.contains("model_type"))
    taken["model_type"] = config.wrapper->textType;
  return taken;
}

StatusOr<ModelConfig> parseHfConfig(std::string_view text,
                                    const json &instead) {
  json whole = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object())
    return Status::invalid("not a JSON object");
  ModelConfig config;
  QLORA_ASSIGN_OR_RETURN(json root, takeTextModel(std::move(whole), config));
  const JsonFields fields(root);
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> architectures,
                         fields.strings("architectures"));
  QLORA_ASSIGN_OR_RETURN(const std::string type,
                         fields.string("model_type", ""));
  QLORA_ASSIGN_OR_RETURN(config.family, findFamily(architectures, type));
  QLORA_RETURN_IF_ERROR(replaceKeys(*config.family, instead, root));
  if (instead.contains(kRouterLogits))
    config.givenRouterLogits = instead[kRouterLogits].get<bool>();
  QLORA_RETURN_IF_ERROR(checkConfigKeys(root, *config.family, config.warnings));
  QLORA_RETURN_IF_ERROR(readSizes(fields, config));
  QLORA_RETURN_IF_ERROR(readPadding(fields, config));
  QLORA_RETURN_IF_ERROR(readHeads(fields, config));
  QLORA_RETURN_IF_ERROR(readBiases(fields, config));
  QLORA_RETURN_IF_ERROR(readActivation(fields, config));
  QLORA_RETURN_IF_ERROR(readExperts(fields, config));
  QLORA_RETURN_IF_ERROR(readDropout(fields, config));
  QLORA_RETURN_IF_ERROR(readFactors(fields, config));
  QLORA_RETURN_IF_ERROR(readLayers(root, config));
  QLORA_RETURN_IF_ERROR(readQuantization(fields, config));
  QLORA_ASSIGN_OR_RETURN(
      config.tied,
      fields.boolean("tie_word_embeddings", config.family->defaults.tied));
  return config;
}

StatusOr<ModelConfig> readHfConfig(const std::string &folder,
                                   const json &instead) {
  const std::string path = folder + "/config.json";
  const auto text = readWholeFile(path);
  if (!text.isOk()) {
    QLORA_RETURN_IF_ERROR(checkModelFolder(folder));
    return Status::notFound("cannot read '{}'; is it a Hugging Face model "
                            "folder?",
                            path);
  }
  StatusOr<ModelConfig> config = parseHfConfig(text.value(), instead);
  if (!config.isOk())
    return config.status().withContext(fmt::format("'{}'", path));
  return config;
}

Status checkTraining(const ModelConfig &config) {
  if (config.dropout.attention == 0)
    return Status::ok();
  return Status::invalid("'{}' in config.json is {}, but dropout of attention "
                         "weights is not supported; use --attention-dropout 0 "
                         "to train without it",
                         config.family->keys.attentionDropout,
                         config.dropout.attention);
}

} // namespace qlora
