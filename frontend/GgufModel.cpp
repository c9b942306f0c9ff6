// SPDX-License-Identifier: MIT

// Names, shapes and changes of a model's tensors in GGUF files.

#include "frontend/GgufModel.h"

#include <cassert>
#include <utility>

#include "frontend/GgufFamilies.h"
#include "frontend/GgufKeys.h"

namespace qlora {

namespace {

/// Lists the sources of one model.
class Lister {
public:
  Lister(const ModelConfig &config, const GgufFamily &family,
         std::vector<GgufSource> &sources)
      : config(config), family(family), sources(sources),
        queryFactor(static_cast<float>(ggufQueryFactor(family, config))) {}

  void addModel(const DecoderWeights &weights, const std::string &untiedHead);

private:
  void addLayer(const LayerWeights &layer);
  void addAttention(const LayerWeights &layer);
  void addMlp(const LayerWeights &layer);
  void addExperts(const ExpertWeights &experts);
  void addGateAndUp(const StackedWeight &weight);
  void addBiases(const ExpertWeights &experts);

  GgufSource &add(std::string name, std::vector<int64_t> shape,
                  std::vector<std::string> parts) {
    sources.push_back({{prefix + std::move(name), GgufType::kF32,
                        std::move(shape)},
                       std::move(parts)});
    return sources.back();
  }
  GgufSource &add(std::string name, const Weight &weight) {
    return add(std::move(name), weight.shape, {weight.name});
  }
  /// Adds `name`.weight and, if there is one, `name`.bias. Calls `change` for
  /// each.
  template <typename Change>
  void addLinear(const std::string &name, const LinearWeight &linear,
                 Change change) {
    GgufSource &weight = add(name + ".weight", linear.weight);
    if (linear.layout == LinearLayout::kInOut)
      std::swap(weight.tensor.shape[0], weight.tensor.shape[1]);
    weight.isTransposed = config.family->layout == LinearLayout::kInOut;
    change(weight);
    if (linear.bias)
      change(add(name + ".bias", *linear.bias));
  }
  void addLinear(const std::string &name, const LinearWeight &linear) {
    addLinear(name, linear, [](GgufSource &) {});
  }
  GgufSource *addNorm(const std::string &name,
                      const std::optional<NormWeight> &norm);

  const ModelConfig &config;
  const GgufFamily &family;
  std::vector<GgufSource> &sources;
  const float queryFactor;
  std::string prefix; ///< "blk.N."
};

} // namespace

static bool isMatrix(const GgufTensor &tensor) {
  return tensor.shape.size() > 1 && tensor.name.ends_with(".weight");
}

int64_t GgufSource::rowValues() const {
  return isMatrix(tensor) ? tensor.shape.back() : 1;
}

int64_t GgufSource::matrixRows() const {
  const std::vector<int64_t> &shape = tensor.shape;
  return isMatrix(tensor) ? shape[shape.size() - 2] : shape.back();
}

int64_t GgufSource::storedRow(int64_t row) const {
  if (permutedHead) {
    const int64_t inHead = row % permutedHead;
    row += inHead / 2 + inHead % 2 * (permutedHead / 2) - inHead;
  }
  return row * stride + phase;
}

/// Returns the weight's source, or null if there is no such norm.
GgufSource *Lister::addNorm(const std::string &name,
                            const std::optional<NormWeight> &norm) {
  if (!norm)
    return nullptr;
  if (norm->bias)
    add(name + ".bias", *norm->bias);
  GgufSource &weight = add(name + ".weight", norm->weight);
  // llama.cpp stores the factor itself.
  weight.addend = config.family->norm == NormKind::kRmsAboveOne ? 1.0f : 0.0f;
  return &weight;
}

void Lister::addAttention(const LayerWeights &layer) {
  addNorm("attn_norm", layer.inputNorm);
  const bool hasQueryNorm = layer.queryNorm.has_value();
  const int64_t head = family.permutesHeads ? config.headDim : 0;
  if (layer.queryKeyValue.size() == 1) {
    assert(!head && queryFactor == 1 && "no such family with one linear");
    addLinear("attn_qkv", layer.queryKeyValue[0]);
  } else {
    addLinear("attn_q", layer.queryKeyValue[0], [&](GgufSource &source) {
      source.permutedHead = head;
      source.factor = hasQueryNorm ? 1 : queryFactor;
    });
    addLinear("attn_k", layer.queryKeyValue[1],
              [&](GgufSource &source) { source.permutedHead = head; });
    addLinear("attn_v", layer.queryKeyValue[2]);
  }
  if (GgufSource *norm = addNorm("attn_q_norm", layer.queryNorm)) {
    norm->factor = queryFactor;
    norm->addend *= queryFactor;
  }
  addNorm("attn_k_norm", layer.keyNorm);
  if (layer.sinks)
    add("attn_sinks.weight", *layer.sinks);
  addLinear("attn_output", layer.attentionOutput);
  addNorm("post_attention_norm", layer.attentionNorm);
}

void Lister::addMlp(const LayerWeights &layer) {
  // Next to experts, the MLP is the shared expert.
  const std::string suffix = layer.experts ? "_shexp" : "";
  const std::vector<LinearWeight> &inputs = layer.mlpInput;
  if (inputs.size() == 2)
    addLinear("ffn_gate" + suffix, inputs[0]);
  if (!inputs.empty()) {
    addLinear("ffn_up" + suffix, inputs.back());
    addLinear("ffn_down" + suffix, layer.mlpOutput);
  }
  if (layer.sharedGate)
    add("ffn_gate_inp_shexp.weight", {config.hiddenSize},
        {layer.sharedGate->weight.name});
}

/// Adds gate and up, which the folder has alternately: a tensor per expert and
/// projection, or one tensor with alternating rows.
void Lister::addGateAndUp(const StackedWeight &weight) {
  const int64_t experts = config.experts.count;
  const std::vector<int64_t> shape = {experts, config.experts.innerSize,
                                      config.hiddenSize};
  for (size_t half : {0, 1}) {
    std::vector<std::string> parts;
    const bool isOne = weight.parts.size() == 1;
    for (size_t i = isOne ? 0 : half; i < weight.parts.size(); i += 2)
      parts.push_back(weight.parts[i].name);
    GgufSource &source =
        add(half ? "ffn_up_exps.weight" : "ffn_gate_exps.weight", shape,
            std::move(parts));
    if (isOne) {
      source.stride = 2;
      source.phase = static_cast<int64_t>(half);
      source.isTransposed = config.family->experts.areStacked;
    }
  }
}

/// Adds the biases of gpt-oss: [experts, out], gate and up alternately.
void Lister::addBiases(const ExpertWeights &experts) {
  const int64_t count = config.experts.count;
  if (experts.router.bias)
    add("ffn_gate_inp.bias", *experts.router.bias);
  if (experts.gateUp.bias)
    for (int64_t half : {0, 1}) {
      GgufSource &source =
          add(half ? "ffn_up_exps.bias" : "ffn_gate_exps.bias",
              {count, config.experts.innerSize}, {experts.gateUp.bias->name});
      source.stride = 2;
      source.phase = half;
    }
  if (experts.down.bias)
    add("ffn_down_exps.bias", *experts.down.bias);
}

void Lister::addExperts(const ExpertWeights &experts) {
  add("ffn_gate_inp.weight", experts.router.parts.front());
  addGateAndUp(experts.gateUp);
  std::vector<std::string> parts;
  for (const Weight &part : experts.down.parts)
    parts.push_back(part.name);
  GgufSource &down = add("ffn_down_exps.weight",
                         {config.experts.count, config.hiddenSize,
                          config.experts.innerSize},
                         std::move(parts));
  down.isTransposed = config.family->experts.areStacked;
  addBiases(experts);
}

void Lister::addLayer(const LayerWeights &layer) {
  addAttention(layer);
  addNorm(std::string(family.mlpNorm), layer.mlpNorm);
  if (layer.experts)
    addExperts(*layer.experts);
  addMlp(layer);
  addNorm("post_ffw_norm", layer.mlpOutputNorm);
}

void Lister::addModel(const DecoderWeights &weights,
                      const std::string &untiedHead) {
  add("token_embd.weight", weights.embedding);
  if (weights.positions)
    add("position_embd.weight", *weights.positions);
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    prefix = fmt::format("blk.{}.", layer);
    addLayer(weights.layers[layer]);
  }
  prefix.clear();
  addNorm("output_norm", weights.norm);
  if (weights.head)
    add("output.weight", *weights.head);
  else if (!untiedHead.empty())
    add("output.weight", weights.embedding.shape, {untiedHead});
  else if (!family.canTieHead)
    add("output.weight", weights.embedding);
}

StatusOr<GgufModel> describeGguf(const ModelConfig &config,
                                 const DecoderWeights &weights,
                                 const std::string &untiedHead) {
  GgufModel model;
  QLORA_ASSIGN_OR_RETURN(const GgufFamily *family,
                         findGgufFamily(config, model.warnings));
  if (family->mustTieHead && !untiedHead.empty())
    return Status::unavailable(
        "the adapter makes the LM head differ from the embedding, and "
        "llama.cpp's architecture {} has only one tensor for both; export "
        "with --to merged instead",
        family->architecture);
  model.architecture = family->architecture;
  Lister(config, *family, model.sources).addModel(weights, untiedHead);
  addRopeFactors(config, model.sources);
  model.keys = ggufKeys(config, *family);
  model.mixModel = {
      .layers = config.layers,
      .experts = config.experts.count,
      .hasOutput = weights.head || !untiedHead.empty(),
      .is70B = config.layers == 80 && config.kvHeads != config.heads};
  return model;
}

} // namespace qlora
