// SPDX-License-Identifier: MIT

// Names of a decoder's tensors, and the checks of what the files hold.

#include "frontend/DecoderWeights.h"

#include <algorithm>
#include <charconv>

#include "frontend/TensorFinder.h"

namespace qlora {

static constexpr const char *kEmbedding = "model.embed_tokens.weight";
static constexpr const char *kHead = "lm_head.weight";
static constexpr std::string_view kLayers = "model.layers.";

namespace {
/// Finds the weights of one layer.
class LayerFinder {
public:
  LayerFinder(const ModelConfig &config, TensorFinder &tensors, int64_t layer)
      : config(config), tensors(tensors),
        prefix(fmt::format("{}{}", kLayers, layer)) {}

  StatusOr<LayerWeights> find();

private:
  Status findAttention(LayerWeights &layer);
  Status findMlp(LayerWeights &layer);
  Status findLinear(const char *name, int64_t out, int64_t in, bool bias,
                    LinearWeight &linear);
  Status findNorm(const char *name, int64_t width, Weight &norm);

  const ModelConfig &config;
  TensorFinder &tensors;
  const std::string prefix;
};
} // namespace

Status LayerFinder::findLinear(const char *name, int64_t out, int64_t in,
                               bool bias, LinearWeight &linear) {
  linear.module = fmt::format("{}.{}", prefix, name);
  QLORA_ASSIGN_OR_RETURN(linear.weight,
                         tensors.linear(linear.module, {out, in}));
  if (!bias)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(linear.bias,
                         tensors.dense(linear.module + ".bias", {out}));
  return Status::ok();
}

Status LayerFinder::findNorm(const char *name, int64_t width, Weight &norm) {
  QLORA_ASSIGN_OR_RETURN(
      norm, tensors.dense(fmt::format("{}.{}.weight", prefix, name), {width}));
  return Status::ok();
}

Status LayerFinder::findAttention(LayerWeights &layer) {
  const int64_t hidden = config.hiddenSize;
  const int64_t width = config.heads * config.headDim;
  const int64_t kvWidth = config.kvHeads * config.headDim;
  QLORA_RETURN_IF_ERROR(
      findLinear("self_attn.q_proj", width, hidden, config.qkvBias, layer.q));
  QLORA_RETURN_IF_ERROR(
      findLinear("self_attn.k_proj", kvWidth, hidden, config.qkvBias, layer.k));
  QLORA_RETURN_IF_ERROR(
      findLinear("self_attn.v_proj", kvWidth, hidden, config.qkvBias, layer.v));
  QLORA_RETURN_IF_ERROR(findLinear("self_attn.o_proj", hidden, width,
                                   config.outputBias, layer.o));
  if (!config.family->qkNorm)
    return Status::ok();
  QLORA_RETURN_IF_ERROR(
      findNorm("self_attn.q_norm", config.headDim, layer.qNorm.emplace()));
  return findNorm("self_attn.k_norm", config.headDim, layer.kNorm.emplace());
}

Status LayerFinder::findMlp(LayerWeights &layer) {
  const int64_t hidden = config.hiddenSize, inner = config.intermediateSize;
  const bool bias = config.mlpBias;
  QLORA_RETURN_IF_ERROR(
      findLinear("mlp.gate_proj", inner, hidden, bias, layer.gate));
  QLORA_RETURN_IF_ERROR(
      findLinear("mlp.up_proj", inner, hidden, bias, layer.up));
  return findLinear("mlp.down_proj", hidden, inner, bias, layer.down);
}

StatusOr<LayerWeights> LayerFinder::find() {
  LayerWeights layer;
  QLORA_RETURN_IF_ERROR(
      findNorm("input_layernorm", config.hiddenSize, layer.inputNorm));
  QLORA_RETURN_IF_ERROR(findAttention(layer));
  QLORA_RETURN_IF_ERROR(findNorm("post_attention_layernorm", config.hiddenSize,
                                 layer.postAttentionNorm));
  QLORA_RETURN_IF_ERROR(findMlp(layer));
  return layer;
}

/// Embedding and head. Tying is symmetric, as in transformers: one tensor may
/// stand for both under either name, and the embedding wins where both are
/// there.
static Status findEnds(const ModelConfig &config, const ModelFiles &files,
                       TensorFinder &tensors, DecoderWeights &weights,
                       std::vector<std::string> &warnings) {
  const std::vector<int64_t> shape = {config.vocabSize, config.hiddenSize};
  const bool hasEmbedding = files.find(kEmbedding).tensor;
  const bool hasHead = files.find(kHead).tensor;
  const bool headOnly = config.tied && hasHead && !hasEmbedding;
  QLORA_ASSIGN_OR_RETURN(weights.embedding,
                         tensors.dense(headOnly ? kHead : kEmbedding, shape));
  if (config.tied && hasHead && hasEmbedding) {
    tensors.skip(kHead);
    warnings.push_back(fmt::format("'{}' is not read: tie_word_embeddings is "
                                   "true, so '{}' is the head",
                                   kHead, kEmbedding));
  }
  if (config.tied)
    return Status::ok();
  if (!hasHead)
    return Status::error(StatusCode::kNotFound,
                         "model '{}' has no '{}' but tie_word_embeddings is "
                         "false; set it to true in config.json if the "
                         "embedding is the head",
                         files.folder(), kHead);
  QLORA_ASSIGN_OR_RETURN(weights.head, tensors.dense(kHead, shape));
  return Status::ok();
}

/// The layer that a tensor's name puts it in; -1 if none.
static int64_t layerOf(std::string_view name) {
  if (!name.starts_with(kLayers))
    return -1;
  name.remove_prefix(kLayers.size());
  int64_t layer = -1;
  const auto [end, error] =
      std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool whole = end != name.data() + name.size() && *end == '.';
  return error == std::errc() && whole ? layer : -1;
}

/// True for tensors that some family or some config.json gives a layer: with
/// them the model computes something else than without.
static bool isOptionalWeight(std::string_view name) {
  constexpr std::string_view kOptional[] = {
      "self_attn.q_proj.bias",  "self_attn.k_proj.bias",
      "self_attn.v_proj.bias",  "self_attn.o_proj.bias",
      "mlp.gate_proj.bias",     "mlp.up_proj.bias",
      "mlp.down_proj.bias",     "self_attn.q_norm.weight",
      "self_attn.k_norm.weight"};
  return layerOf(name) >= 0 &&
         std::any_of(std::begin(kOptional), std::end(kOptional),
                     [&](std::string_view end) { return name.ends_with(end); });
}

static Status checkLeftOver(const ModelConfig &config, const ModelFiles &files,
                            const TensorFinder &tensors,
                            std::vector<std::string> &warnings) {
  int64_t count = 0;
  std::string example;
  for (const std::string &name : files.tensorNames()) {
    if (tensors.isTaken(name) || name.ends_with("rotary_emb.inv_freq"))
      continue;
    const std::string &path = files.find(name).file->path();
    if (layerOf(name) >= config.layers)
      return Status::invalid("'{}': tensor '{}' is of layer {}, but "
                             "num_hidden_layers in config.json is {}",
                             path, name, layerOf(name), config.layers);
    if (isOptionalWeight(name))
      return Status::invalid("'{}': tensor '{}' has no place in a {} with "
                             "this config.json",
                             path, name, config.family->architecture);
    if (!count++)
      example = name;
  }
  if (count)
    warnings.push_back(fmt::format("{} of the files' tensors not used, such "
                                   "as '{}'",
                                   count, example));
  return Status::ok();
}

StatusOr<DecoderWeights> findWeights(const ModelConfig &config,
                                     const ModelFiles &files,
                                     std::vector<std::string> &warnings) {
  TensorFinder tensors(config, files);
  DecoderWeights weights;
  QLORA_RETURN_IF_ERROR(findEnds(config, files, tensors, weights, warnings));
  for (int64_t i = 0; i < config.layers; ++i) {
    QLORA_ASSIGN_OR_RETURN(LayerWeights layer,
                           LayerFinder(config, tensors, i).find());
    weights.layers.push_back(std::move(layer));
  }
  QLORA_ASSIGN_OR_RETURN(
      weights.norm, tensors.dense("model.norm.weight", {config.hiddenSize}));
  QLORA_RETURN_IF_ERROR(tensors.checkQuantization());
  QLORA_RETURN_IF_ERROR(checkLeftOver(config, files, tensors, warnings));
  return weights;
}

} // namespace qlora
