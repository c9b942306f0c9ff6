// SPDX-License-Identifier: MIT

// Finds a decoder's tensors by name, and checks the tensors that it does not
// use.

#include "frontend/DecoderWeights.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <span>

#include "frontend/TensorFinder.h"

namespace qlora {

/// Returns the name of a module's weight: "transformer.wte.weight".
static std::string weightOf(std::string_view module) {
  return fmt::format("{}.weight", module);
}

static StatusOr<NormWeight> findNorm(const ModelConfig &config,
                                     TensorFinder &tensors, std::string module,
                                     int64_t width) {
  NormWeight norm;
  QLORA_ASSIGN_OR_RETURN(norm.weight, tensors.dense(weightOf(module), {width}));
  if (config.family->norm == NormKind::kLayer) {
    QLORA_ASSIGN_OR_RETURN(norm.bias, tensors.dense(module + ".bias", {width}));
  }
  norm.module = std::move(module);
  return norm;
}

namespace {
/// Finds the weights of one layer.
class LayerFinder {
public:
  LayerFinder(const ModelConfig &config, TensorFinder &tensors, int64_t layer)
      : config(config), names(config.family->modules), tensors(tensors),
        number(static_cast<size_t>(layer)),
        prefix(fmt::format("{}.{}", config.modulePath(names.layers), layer)) {}

  StatusOr<LayerWeights> find();

private:
  Status findAttention(LayerWeights &layer);
  Status findMlp(LayerWeights &layer);
  Status findSharedExpert(LayerWeights &layer);
  StatusOr<LinearWeight> linear(std::string_view name, int64_t out, int64_t in,
                                bool bias);
  /// Finds one linear for each of `widths`. If only the first of `parts` has a
  /// name, finds a single linear that computes all of them.
  StatusOr<std::vector<LinearWeight>>
  linears(std::span<const std::string_view> parts, std::vector<int64_t> widths,
          bool bias);
  /// Finds the weights of a norm, unless its name is empty.
  Status norm(std::string_view name, int64_t width,
              std::optional<NormWeight> &found);

  const ModelConfig &config;
  const ModuleNames &names;
  TensorFinder &tensors;
  const size_t number;
  const std::string prefix;
};
} // namespace

Status LayerFinder::norm(std::string_view name, int64_t width,
                         std::optional<NormWeight> &found) {
  if (name.empty())
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(
      found, findNorm(config, tensors, fmt::format("{}.{}", prefix, name),
                      width));
  return Status::ok();
}

StatusOr<LinearWeight> LayerFinder::linear(std::string_view name, int64_t out,
                                           int64_t in, bool bias) {
  const std::string module = fmt::format("{}.{}", prefix, name);
  QLORA_ASSIGN_OR_RETURN(LinearWeight found, tensors.linear(module, out, in));
  if (bias) {
    QLORA_ASSIGN_OR_RETURN(found.bias, tensors.dense(module + ".bias", {out}));
  }
  return found;
}

StatusOr<std::vector<LinearWeight>>
LayerFinder::linears(std::span<const std::string_view> parts,
                     std::vector<int64_t> widths, bool bias) {
  if (widths.size() > 1 && parts[1].empty())
    widths = {std::accumulate(widths.begin(), widths.end(), int64_t{0})};
  std::vector<LinearWeight> found;
  for (size_t i = 0; i < widths.size(); ++i) {
    QLORA_ASSIGN_OR_RETURN(LinearWeight part, linear(parts[i], widths[i],
                                                     config.hiddenSize, bias));
    found.push_back(std::move(part));
  }
  return found;
}

Status LayerFinder::findAttention(LayerWeights &layer) {
  const int64_t width = config.heads * config.headDim;
  const int64_t kvWidth = config.kvHeads * config.headDim;
  QLORA_ASSIGN_OR_RETURN(
      layer.queryKeyValue,
      linears(names.queryKeyValue, {width, kvWidth, kvWidth}, config.qkvBias));
  QLORA_ASSIGN_OR_RETURN(layer.attentionOutput,
                         linear(names.attentionOutput, config.hiddenSize, width,
                                config.outputBias));
  if (!names.sinks.empty()) {
    QLORA_ASSIGN_OR_RETURN(
        layer.sinks, tensors.dense(fmt::format("{}.{}", prefix, names.sinks),
                                   {config.heads}));
  }
  const HeadNorms norms = config.family->mixer.headNorms;
  if (norms == HeadNorms::kNone)
    return Status::ok();
  const bool isWhole = norms == HeadNorms::kAllHeads;
  QLORA_RETURN_IF_ERROR(norm(
      names.queryNorm, isWhole ? width : config.headDim, layer.queryNorm));
  return norm(names.keyNorm, isWhole ? kvWidth : config.headDim, layer.keyNorm);
}

/// Finds the shared expert, if the model has one. It is an MLP whose linears
/// have the same names as the projections of the experts.
Status LayerFinder::findSharedExpert(LayerWeights &layer) {
  const Experts &experts = config.family->experts;
  const int64_t hidden = config.hiddenSize, inner = config.experts.sharedSize;
  if (!inner)
    return Status::ok();
  const auto project = [&](size_t number, int64_t out, int64_t in) {
    return linear(
        fmt::format("{}.{}", experts.shared, experts.projections[number]), out,
        in, /*bias=*/false);
  };
  for (size_t number : {0, 1}) {
    QLORA_ASSIGN_OR_RETURN(LinearWeight input, project(number, inner, hidden));
    layer.mlpInput.push_back(std::move(input));
  }
  QLORA_ASSIGN_OR_RETURN(layer.mlpOutput, project(2, hidden, inner));
  QLORA_ASSIGN_OR_RETURN(layer.sharedGate,
                         linear(experts.sharedGate, 1, hidden, false));
  return Status::ok();
}

Status LayerFinder::findMlp(LayerWeights &layer) {
  if (config.experts.count && config.experts.layers[number]) {
    QLORA_ASSIGN_OR_RETURN(layer.experts, findExperts(config, tensors, prefix));
    return findSharedExpert(layer);
  }
  std::vector<int64_t> widths(config.family->mlp.gated ? 2 : 1,
                              config.innerSize);
  QLORA_ASSIGN_OR_RETURN(layer.mlpInput,
                         linears(names.mlpInput, widths, config.mlpBias));
  QLORA_ASSIGN_OR_RETURN(layer.mlpOutput,
                         linear(names.mlpOutput, config.hiddenSize,
                                config.innerSize, config.mlpBias));
  return Status::ok();
}

StatusOr<LayerWeights> LayerFinder::find() {
  const int64_t width = config.hiddenSize;
  LayerWeights layer;
  QLORA_RETURN_IF_ERROR(norm(names.inputNorm, width, layer.inputNorm));
  QLORA_RETURN_IF_ERROR(findAttention(layer));
  QLORA_RETURN_IF_ERROR(norm(names.attentionNorm, width, layer.attentionNorm));
  QLORA_RETURN_IF_ERROR(norm(names.mlpNorm, width, layer.mlpNorm));
  QLORA_RETURN_IF_ERROR(findMlp(layer));
  QLORA_RETURN_IF_ERROR(norm(names.mlpOutputNorm, width, layer.mlpOutputNorm));
  return layer;
}

/// Finds embedding and LM head. In a tied model, both use one tensor, as in
/// transformers. The files may name it after either module. If both names
/// exist, uses the embedding's tensor.
static Status findEnds(const ModelConfig &config, const ModelFiles &files,
                       TensorFinder &tensors, DecoderWeights &weights,
                       std::vector<std::string> &warnings) {
  const ModuleNames &names = config.family->modules;
  const std::string embedding = weightOf(config.modulePath(names.embedding));
  const std::string head = weightOf(config.modulePath(names.head));
  const std::vector<int64_t> shape = {config.vocabSize, config.hiddenSize};
  const bool hasEmbedding = files.find(embedding).tensor;
  const bool hasHead = files.find(head).tensor;
  const bool headOnly = config.tied && hasHead && !hasEmbedding;
  QLORA_ASSIGN_OR_RETURN(weights.embedding,
                         tensors.dense(headOnly ? head : embedding, shape));
  if (config.family->positions == PositionKind::kLearned) {
    QLORA_ASSIGN_OR_RETURN(
        weights.positions,
        tensors.dense(weightOf(config.modulePath(names.positions)),
                      {config.maxPositions, config.hiddenSize}));
  }
  if (config.tied && hasHead && hasEmbedding) {
    tensors.skip(head);
    warnings.push_back(fmt::format("'{}' is ignored: tie_word_embeddings is "
                                   "true, so '{}' is the LM head",
                                   head, embedding));
  }
  if (config.tied)
    return Status::ok();
  if (!hasHead)
    return Status::notFound("model '{}' has no '{}' but tie_word_embeddings is "
                            "false; set it to true in config.json if the "
                            "embedding is the LM head",
                            files.folder(), head);
  QLORA_ASSIGN_OR_RETURN(weights.head, tensors.dense(head, shape));
  return Status::ok();
}

/// Returns the remainder of a tensor's name after "model.layers.", or an empty
/// text if the name has another prefix.
static std::string_view insideLayers(const Family &family,
                                     std::string_view name) {
  for (const std::string &start :
       spellings(fmt::format("{}.", family.modules.layers)))
    if (name.starts_with(start))
      return name.substr(start.size());
  return {};
}

/// Returns the layer index in a tensor's name, or -1 if the name has none.
static int64_t layerOf(const Family &family, std::string_view name) {
  const std::string_view inside = insideLayers(family, name);
  int64_t layer = -1;
  const auto [end, error] =
      std::from_chars(inside.data(), inside.data() + inside.size(), layer);
  const bool whole = end != inside.data() + inside.size() && *end == '.';
  return error == std::errc() && whole ? layer : -1;
}

/// True for a layer's tensor that this model does not use, but a model with
/// another family or config.json would. Ignoring it would change results.
static bool isOptionalWeight(const Family &family, std::string_view name) {
  const ModuleNames &modules = family.modules;
  const auto &[q, k, v] = modules.queryKeyValue;
  const auto &[gate, up] = modules.mlpInput;
  const auto isOf = [&](std::string_view module, std::string_view end) {
    return !module.empty() && name.ends_with(fmt::format(".{}{}", module, end));
  };
  if (layerOf(family, name) < 0)
    return false;
  for (std::string_view module :
       {q, k, v, modules.attentionOutput, gate, up, modules.mlpOutput})
    if (isOf(module, ".bias"))
      return true;
  return isOf(modules.queryNorm, ".weight") || isOf(modules.keyNorm, ".weight");
}

static bool isBuffer(const Family &family, std::string_view name) {
  return std::ranges::any_of(family.modules.buffers, [&](auto end) {
    return !end.empty() && name.ends_with(end);
  });
}

/// True for a bias of zeros that AutoGPTQ added to a linear without a bias.
static StatusOr<bool> isZeroBias(const ModelFiles &files,
                                 const std::string &name) {
  constexpr uint64_t kMostBytes = 1 << 22;
  constexpr std::string_view kBias = ".bias";
  const auto [file, tensor] = files.find(name);
  if (!name.ends_with(kBias) || tensor->byteCount() > kMostBytes)
    return false;
  const std::string module = name.substr(0, name.size() - kBias.size());
  if (!files.find(module + ".qweight").tensor)
    return false;
  std::vector<uint8_t> bytes(tensor->byteCount());
  QLORA_RETURN_IF_ERROR(file->read(*tensor, 0, bytes));
  return std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
}

static Status checkLeftOver(const ModelConfig &config, const ModelFiles &files,
                            const TensorFinder &tensors,
                            std::vector<std::string> &warnings) {
  const Family &family = *config.family;
  int64_t count = 0;
  std::string example;
  for (const std::string &name : files.tensorNames()) {
    if (tensors.isTaken(name) || isBuffer(family, name))
      continue;
    const std::string &path = files.find(name).file->path();
    if (layerOf(family, name) >= config.layers)
      return Status::invalid("'{}': tensor '{}' belongs to layer {}, but {} "
                             "in config.json is {}",
                             path, name, layerOf(family, name),
                             family.keys.layers, config.layers);
    QLORA_ASSIGN_OR_RETURN(const bool isZero, isZeroBias(files, name));
    if (isOptionalWeight(family, name) && !isZero)
      return Status::invalid("'{}': tensor '{}' does not belong to a {} with "
                             "this config.json",
                             path, name, family.architecture);
    if (!count++)
      example = name;
  }
  if (count)
    warnings.push_back(fmt::format("unused tensors in the files: {}, such as "
                                   "'{}'",
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
      weights.norm,
      findNorm(config, tensors,
               config.modulePath(config.family->modules.finalNorm),
               config.hiddenSize));
  QLORA_RETURN_IF_ERROR(tensors.checkQuantization());
  QLORA_RETURN_IF_ERROR(checkLeftOver(config, files, tensors, warnings));
  return weights;
}

} // namespace qlora
