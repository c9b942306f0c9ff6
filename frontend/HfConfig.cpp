// SPDX-License-Identifier: MIT

// config.json -> ModelConfig.

#include "frontend/HfConfig.h"

#include <cmath>
#include <fstream>
#include <iterator>

#include "frontend/ConfigKeys.h"
#include "frontend/JsonFields.h"

using nlohmann::json;

namespace qlora {

/// More layers than any model has; keeps a hostile count from being a list
/// of that length.
static constexpr int64_t kMaxLayers = 65536;

static StatusOr<const Family *> findFamily(const JsonFields &fields) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> architectures,
                         fields.strings("architectures"));
  QLORA_ASSIGN_OR_RETURN(const std::string type,
                         fields.string("model_type", ""));
  if (architectures.empty() && type.empty())
    return Status::invalid("neither 'architectures' nor 'model_type' says "
                           "which model this is");
  if (architectures.empty()) {
    if (const Family *family = findModelType(type))
      return family;
    return Status::invalid("model type '{}' is not supported; supported are "
                           "{}",
                           type, familyNames());
  }
  const Family *family = findArchitecture(architectures.front());
  if (!family)
    return Status::invalid("architecture '{}' is not supported; supported "
                           "are {}",
                           architectures.front(), familyNames());
  if (!type.empty() && type != family->modelType)
    return Status::invalid("architecture '{}' and model_type '{}' contradict "
                           "each other; expected model_type '{}'",
                           family->architecture, type, family->modelType);
  return family;
}

static Status readSizes(const JsonFields &fields, ModelConfig &config) {
  QLORA_ASSIGN_OR_RETURN(config.vocabSize, fields.integer("vocab_size", 1));
  QLORA_ASSIGN_OR_RETURN(config.hiddenSize, fields.integer("hidden_size", 1));
  QLORA_ASSIGN_OR_RETURN(config.intermediateSize,
                         fields.integer("intermediate_size", 1));
  QLORA_ASSIGN_OR_RETURN(config.layers, fields.integer("num_hidden_layers", 1));
  QLORA_ASSIGN_OR_RETURN(config.maxPositions,
                         fields.integer("max_position_embeddings", 1, 0));
  QLORA_ASSIGN_OR_RETURN(
      config.rmsNormEpsilon,
      fields.positive("rms_norm_eps", config.family->defaultRmsNormEpsilon));
  if (config.layers > kMaxLayers)
    return Status::invalid("'num_hidden_layers' is {}; at most {} are "
                           "supported",
                           config.layers, kMaxLayers);
  return Status::ok();
}

static Status readHeads(const JsonFields &fields, ModelConfig &config) {
  QLORA_ASSIGN_OR_RETURN(config.heads,
                         fields.integer("num_attention_heads", 1));
  // A key that is null means "as many as heads" in every family, one that is
  // missing means the family's default.
  const char *kvKey = "num_key_value_heads";
  const int64_t familyKvHeads = config.family->defaultKvHeads;
  const bool useHeads = fields.mentions(kvKey) || !familyKvHeads;
  QLORA_ASSIGN_OR_RETURN(
      config.kvHeads,
      fields.integer(kvKey, 1, useHeads ? config.heads : familyKvHeads));
  if (config.heads % config.kvHeads)
    return Status::invalid("'num_attention_heads' is {}, not a multiple of "
                           "the {} key-value heads",
                           config.heads, config.kvHeads);
  int64_t headDim = config.family->defaultHeadDim;
  if (!headDim && !fields.find("head_dim")) {
    if (config.hiddenSize % config.heads)
      return Status::invalid("'hidden_size' {} is not a multiple of the {} "
                             "heads and there is no 'head_dim'",
                             config.hiddenSize, config.heads);
    headDim = config.hiddenSize / config.heads;
  }
  QLORA_ASSIGN_OR_RETURN(config.headDim,
                         fields.integer("head_dim", 1, headDim));
  if (config.headDim % 2)
    return Status::invalid("the width of a head is {}; RoPE needs an even "
                           "one",
                           config.headDim);
  return Status::ok();
}

/// Keys that turn on what the family has no weights for are refused.
static Status readBiases(const JsonFields &fields, ModelConfig &config) {
  QLORA_ASSIGN_OR_RETURN(const bool attention,
                         fields.boolean("attention_bias", false));
  QLORA_ASSIGN_OR_RETURN(const bool mlp, fields.boolean("mlp_bias", false));
  const Family &family = *config.family;
  if (attention && family.attentionBias == AttentionBias::kNone)
    return Status::invalid("'attention_bias' is true, but {} has none",
                           family.architecture);
  if (mlp && !family.mlpBiasKey)
    return Status::invalid("'mlp_bias' is true, but {} has none",
                           family.architecture);
  config.mlpBias = mlp;
  config.outputBias =
      attention && family.attentionBias == AttentionBias::kByKey;
  config.qkvBias =
      config.outputBias || family.attentionBias == AttentionBias::kQkv;
  return Status::ok();
}

static Status readActivation(const JsonFields &fields) {
  QLORA_ASSIGN_OR_RETURN(const std::string activation,
                         fields.string("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish")
    return Status::invalid("'hidden_act' is '{}'; only silu is supported",
                           activation);
  return Status::ok();
}

/// The window of a layer that slides; 0 if none does.
static StatusOr<int64_t> readWindow(const JsonFields &fields,
                                    const Family &family) {
  QLORA_ASSIGN_OR_RETURN(
      const bool wanted,
      fields.boolean("use_sliding_window",
                     family.window != WindowRule::kByLayers));
  // transformers asks this key of the Qwen families only; elsewhere false
  // beside a window would be a guess.
  if (family.window == WindowRule::kByLayers && !wanted)
    return 0;
  const bool missing = !fields.mentions("sliding_window");
  QLORA_ASSIGN_OR_RETURN(
      const int64_t window,
      fields.integer("sliding_window", 1, missing ? family.defaultWindow : 0));
  if (!window || (family.window == WindowRule::kNone && !wanted))
    return 0;
  if (family.window == WindowRule::kNone)
    return Status::invalid("'sliding_window' is {}, but {} has none", window,
                           family.architecture);
  if (!wanted)
    return Status::invalid("'use_sliding_window' is false but "
                           "'sliding_window' is {}, which {} uses; set it to "
                           "null for no window",
                           window, family.architecture);
  return window;
}

static Status checkLayerTypes(const std::vector<std::string> &types,
                              int64_t layers) {
  if (types.size() != static_cast<size_t>(layers))
    return Status::invalid("'layer_types' has {} entries for {} layers",
                           types.size(), layers);
  for (const std::string &type : types)
    if (type != "full_attention" && type != "sliding_attention")
      return Status::invalid("layer type '{}' is not supported; supported "
                             "are full_attention, sliding_attention",
                             type);
  return Status::ok();
}

static Status readWindows(const JsonFields &fields, ModelConfig &config) {
  const Family &family = *config.family;
  QLORA_ASSIGN_OR_RETURN(const int64_t window, readWindow(fields, family));
  QLORA_ASSIGN_OR_RETURN(const int64_t fullLayers,
                         fields.integer("max_window_layers", 0, 28));
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                         fields.strings("layer_types"));
  if (fields.find("layer_types"))
    QLORA_RETURN_IF_ERROR(checkLayerTypes(types, config.layers));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    bool sliding =
        window && (family.window == WindowRule::kAll || layer >= fullLayers);
    if (!types.empty()) {
      const bool named = types[layer] == "sliding_attention";
      if (named && !window)
        return Status::invalid("layer {} is sliding_attention, but no "
                               "sliding window is set",
                               layer);
      if (sliding != named && family.window == WindowRule::kAll)
        return Status::invalid("layer {} is full_attention, but {} slides in "
                               "every layer",
                               layer, family.architecture);
      sliding = named;
    }
    config.windows.push_back(sliding ? window : 0);
  }
  return Status::ok();
}

/// bitsandbytes' NF4 is the one method read. What is stored how, block and
/// double quantisation included, is for each weight's quant_state to say.
static Status readQuantization(const JsonFields &fields, ModelConfig &config) {
  const json *object = fields.find("quantization_config");
  if (!object)
    return Status::ok();
  if (!object->is_object())
    return Status::invalid("'quantization_config' is {}; expected an object",
                           shortDump(*object));
  const JsonFields quantization(*object);
  QLORA_ASSIGN_OR_RETURN(const std::string method,
                         quantization.string("quant_method", "bitsandbytes"));
  if (method != "bitsandbytes")
    return Status::invalid("quantization method '{}' is not supported; "
                           "supported is bitsandbytes (NF4)",
                           method);
  QLORA_ASSIGN_OR_RETURN(const bool eightBit,
                         quantization.boolean("load_in_8bit", false));
  QLORA_ASSIGN_OR_RETURN(const bool fourBit,
                         quantization.boolean("load_in_4bit", false));
  if (eightBit || !fourBit)
    return Status::invalid("quantization_config has load_in_{} {}; only "
                           "4-bit NF4 is supported",
                           eightBit ? "8bit" : "4bit", eightBit);
  QLORA_ASSIGN_OR_RETURN(const std::string type,
                         quantization.string("bnb_4bit_quant_type", "fp4"));
  if (type != "nf4")
    return Status::invalid("bnb_4bit_quant_type '{}' is not supported; only "
                           "nf4 is",
                           type);
  QLORA_ASSIGN_OR_RETURN(config.unquantizedModules,
                         quantization.strings("llm_int8_skip_modules"));
  config.quantized = true;
  return Status::ok();
}

static Status readRope(const json &root, ModelConfig &config) {
  QLORA_ASSIGN_OR_RETURN(config.rope, readRopeConfig(root, config.warnings));
  config.frequencies = inverseFrequencies(config.rope, config.headDim);
  for (float frequency : config.frequencies)
    if (!std::isfinite(frequency))
      return Status::invalid("RoPE with rope_theta {} and factor {} has a "
                             "frequency of {}",
                             config.rope.theta, config.rope.factor, frequency);
  return Status::ok();
}

StatusOr<ModelConfig> parseHfConfig(std::string_view text) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object())
    return Status::invalid("not a JSON object");
  const JsonFields fields(root);
  ModelConfig config;
  QLORA_ASSIGN_OR_RETURN(config.family, findFamily(fields));
  QLORA_RETURN_IF_ERROR(checkConfigKeys(root, config.warnings));
  QLORA_RETURN_IF_ERROR(readSizes(fields, config));
  QLORA_RETURN_IF_ERROR(readHeads(fields, config));
  QLORA_RETURN_IF_ERROR(readBiases(fields, config));
  QLORA_RETURN_IF_ERROR(readActivation(fields));
  QLORA_RETURN_IF_ERROR(readWindows(fields, config));
  QLORA_RETURN_IF_ERROR(readQuantization(fields, config));
  QLORA_RETURN_IF_ERROR(readRope(root, config));
  QLORA_ASSIGN_OR_RETURN(
      config.tied,
      fields.boolean("tie_word_embeddings", config.family->defaultTied));
  return config;
}

StatusOr<ModelConfig> readHfConfig(const std::string &folder) {
  const std::string path = folder + "/config.json";
  std::ifstream stream(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  if (!stream.is_open() || stream.bad())
    return Status::error(StatusCode::kNotFound,
                         "cannot read '{}'; is it a Hugging Face model "
                         "folder?",
                         path);
  StatusOr<ModelConfig> config = parseHfConfig(text);
  if (!config.isOk())
    return config.status().withContext(fmt::format("'{}'", path));
  return config;
}

} // namespace qlora
