// SPDX-License-Identifier: MIT

// Reads experts in config.json, and finds their tensors in the model files.

#include "frontend/Experts.h"

#include <algorithm>
#include <span>

#include "frontend/JsonFields.h"
#include "frontend/TensorFinder.h"

using nlohmann::json;

namespace qlora {

// config.json -----------------------------------------------------------------

static constexpr const char *kChosenKey = "num_experts_per_tok";
static constexpr const char *kNormalizeKey = "norm_topk_prob";
static constexpr const char *kLossKey = "router_aux_loss_coef";
static constexpr const char *kNoiseKey = "router_jitter_noise";
static constexpr const char *kStepKey = "decoder_sparse_step";
static constexpr const char *kDenseKey = "mlp_only_layers";

bool understandsExpertKey(const Family &family, std::string_view key) {
  const Experts &experts = family.experts;
  if (!experts.isThere())
    return false;
  if (!experts.shared.empty() && key == experts.sharedKey)
    return true;
  const std::string_view keys[] = {experts.countKeys[0],
                                   experts.countKeys[1],
                                   experts.innerKey,
                                   kChosenKey,
                                   kNormalizeKey,
                                   kRouterLogits,
                                   kLossKey,
                                   kNoiseKey,
                                   kStepKey,
                                   kDenseKey};
  return std::ranges::find(keys, key) != std::end(keys) ||
         key == experts.glu.limitKey || key == experts.glu.slopeKey;
}

/// Reads the number of experts from one of two keys, which must agree if both
/// exist.
static StatusOr<int64_t> readCount(const JsonFields &fields,
                                   const Experts &experts) {
  const auto &[first, second] = experts.countKeys;
  const char *key = fields.find(first) ? first : second;
  QLORA_ASSIGN_OR_RETURN(const int64_t count, fields.integer(key, 1));
  QLORA_ASSIGN_OR_RETURN(const int64_t other, fields.integer(second, 1, count));
  if (other != count)
    return Status::invalid("'{}' is {}, but '{}' is {}; both are the number of "
                           "experts and must be equal",
                           first, count, second, other);
  return count;
}

/// Reads which layers have experts, as transformers does: each `step`-th layer,
/// except those in `mlp_only_layers`.
static Status readLayers(const JsonFields &fields, ModelConfig &config) {
  ExpertsConfig &experts = config.experts;
  experts.layers.assign(static_cast<size_t>(config.layers), true);
  if (!config.family->experts.hasDenseLayers)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const int64_t step, fields.integer(kStepKey, 1, 1));
  for (int64_t layer = 0; layer < config.layers; ++layer)
    experts.layers[static_cast<size_t>(layer)] = (layer + 1) % step == 0;
  const json *dense = fields.find(kDenseKey);
  if (!dense)
    return Status::ok();
  const auto isLayer = [&](const json &layer) {
    return layer.is_number_unsigned() && layer < config.layers;
  };
  if (!dense->is_array() || !std::ranges::all_of(*dense, isLayer))
    return Status::invalid("'{}' is {}; expected indices of the {} layers",
                           kDenseKey, shortDump(*dense), config.layers);
  for (const json &layer : *dense)
    experts.layers[layer.get<size_t>()] = false;
  return Status::ok();
}

static Status readGlu(const JsonFields &fields, const ClampedGlu &family,
                      ClampedGlu &glu) {
  glu = family;
  if (*family.limitKey) {
    QLORA_ASSIGN_OR_RETURN(glu.limit,
                           fields.positive(family.limitKey, family.limit));
  }
  if (*family.slopeKey) {
    QLORA_ASSIGN_OR_RETURN(glu.slope,
                           fields.positive(family.slopeKey, family.slope));
  }
  return Status::ok();
}

/// Reads the coefficient of the router loss. As in transformers, the loss
/// exists only if `output_router_logits` is true.
static Status readRouterTraining(const JsonFields &fields,
                                 ExpertsConfig &experts) {
  QLORA_ASSIGN_OR_RETURN(const bool hasLoss,
                         fields.boolean(kRouterLogits, false));
  if (hasLoss) {
    QLORA_ASSIGN_OR_RETURN(experts.routerLoss,
                           fields.notNegative(kLossKey, 0.001));
  }
  QLORA_ASSIGN_OR_RETURN(const double noise, fields.probability(kNoiseKey, 0));
  if (noise != 0)
    return Status::invalid("'{}' is {}; noise before the router is not "
                           "supported, set it to 0",
                           kNoiseKey, noise);
  return Status::ok();
}

Status readExperts(const JsonFields &fields, ModelConfig &config) {
  const Experts &family = config.family->experts;
  if (!family.isThere())
    return Status::ok();
  ExpertsConfig &experts = config.experts;
  QLORA_ASSIGN_OR_RETURN(experts.count, readCount(fields, family));
  QLORA_ASSIGN_OR_RETURN(experts.chosen, fields.integer(kChosenKey, 1));
  QLORA_ASSIGN_OR_RETURN(experts.innerSize, fields.integer(family.innerKey, 1));
  if (!family.shared.empty()) {
    QLORA_ASSIGN_OR_RETURN(experts.sharedSize,
                           fields.integer(family.sharedKey, 1));
  }
  QLORA_ASSIGN_OR_RETURN(
      experts.normalized,
      fields.boolean(kNormalizeKey, family.alwaysNormalized));
  if (family.alwaysNormalized && !experts.normalized)
    return Status::invalid("'{}' is false, but {} always normalizes weights; "
                           "set it to true",
                           kNormalizeKey, config.family->architecture);
  if (experts.chosen > experts.count)
    return Status::invalid("'{}' is {}, but there are {} experts", kChosenKey,
                           experts.chosen, experts.count);
  QLORA_RETURN_IF_ERROR(readRouterTraining(fields, experts));
  QLORA_RETURN_IF_ERROR(readGlu(fields, family.glu, experts.glu));
  return readLayers(fields, config);
}

void describeExperts(const ModelConfig &config, nlohmann::ordered_json &model) {
  const ExpertsConfig &experts = config.experts;
  if (!experts.count)
    return;
  model["num_experts"] = experts.count;
  model[kChosenKey] = experts.chosen;
  model["expert_intermediate_size"] = experts.innerSize;
  model[kNormalizeKey] = experts.normalized;
  // Write null if there is no router loss, so that the description differs from
  // a model with the loss.
  model[kLossKey] = experts.routerLoss ? json(experts.routerLoss) : json();
  if (experts.glu.limit)
    model["glu_limit"] = experts.glu.limit;
  if (experts.glu.slope != 1)
    model["glu_slope"] = experts.glu.slope;
  if (experts.sharedSize)
    model["shared_expert_intermediate_size"] = experts.sharedSize;
  std::string dense;
  for (size_t layer = 0; layer < experts.layers.size(); ++layer)
    if (!experts.layers[layer])
      dense += fmt::format("{}{}", dense.empty() ? "" : ", ", layer);
  if (!dense.empty())
    model[kDenseKey] = dense;
}

// Tensors ---------------------------------------------------------------------

static bool haveOneType(const Weight &a, const Weight &b) {
  if (!a.stored || !b.stored)
    return a.dtype == b.dtype && !a.stored && !b.stored;
  return a.stored->dtype == b.stored->dtype &&
         a.stored->block == b.stored->block;
}

/// Checks that a weight can be stacked with others. Each weight must begin at
/// the start of a block. A stack can hold only one offset of double-quantized
/// scales.
static Status checkStackable(const Weight &weight) {
  if (!weight.stored)
    return Status::ok();
  const StoredLayout &stored = *weight.stored;
  if (stored.elements % stored.block != 0)
    return Status::unavailable(
        "tensor '{}' has {} elements, not a multiple of its block size {}, "
        "which is not supported for files with one tensor per expert",
        weight.name, stored.elements, stored.block);
  if (stored.doubleQuant !=
      (stored.format().codedScales == CodedScales::kAlways))
    return Status::unavailable(
        "tensor '{}' is {} with double quantization, which is not supported "
        "for files with one tensor per expert",
        weight.name, stored.format().title);
  return Status::ok();
}

/// Stacks the `projections` of expert 0, then of expert 1, and so on. Each
/// projection has the shape [rows, columns].
static StatusOr<StackedWeight>
stack(const ModelConfig &config, TensorFinder &tensors, std::string name,
      const std::string &each, std::span<const std::string_view> projections,
      int64_t rows, int64_t columns) {
  StackedWeight stacked;
  for (int64_t expert = 0; expert < config.experts.count; ++expert)
    for (std::string_view projection : projections) {
      const std::string part =
          fmt::format("{}.{}.{}.weight", each, expert, projection);
      QLORA_ASSIGN_OR_RETURN(Weight found,
                             tensors.isStored(part)
                                 ? tensors.stored(part, {rows, columns})
                                 : tensors.dense(part, {rows, columns}));
      QLORA_RETURN_IF_ERROR(checkStackable(found));
      stacked.parts.push_back(std::move(found));
    }
  const Weight &first = stacked.parts.front();
  for (const Weight &part : stacked.parts)
    if (!haveOneType(part, first))
      return Status::invalid("tensor '{}' is {} and '{}' {}; experts of one "
                             "layer must have one type",
                             first.name, safetensorsDtypeName(first.dtype),
                             part.name, safetensorsDtypeName(part.dtype));
  stacked.name = std::move(name);
  stacked.shape = {rows * int64_t(stacked.parts.size()), columns};
  return stacked;
}

/// Finds the tensor with all experts' matrices. Its shape in the files is
/// [experts, in, out] if dense, and [experts, out, in] in a quantized format.
static StatusOr<StackedWeight> findStacked(const ModelConfig &config,
                                           TensorFinder &tensors,
                                           std::string name, int64_t in,
                                           int64_t out) {
  const int64_t experts = config.experts.count;
  if (tensors.isStored(name)) {
    QLORA_ASSIGN_OR_RETURN(Weight weight,
                           tensors.stored(name, {experts, out, in}));
    return StackedWeight{
        name, {weight}, weight.shape, LinearLayout::kOutIn, {}};
  }
  QLORA_ASSIGN_OR_RETURN(Weight weight,
                         tensors.dense(name, {experts, in, out}));
  return StackedWeight{
      name, {weight}, {experts * in, out}, LinearLayout::kInOut, {}};
}

static StatusOr<StackedWeight> findRouter(const ModelConfig &config,
                                          TensorFinder &tensors,
                                          const std::string &layer) {
  const Experts &names = config.family->experts;
  const std::string module = fmt::format("{}.{}", layer, names.router);
  QLORA_ASSIGN_OR_RETURN(
      Weight weight, tensors.dense(module + ".weight",
                                   {config.experts.count, config.hiddenSize}));
  StackedWeight router = {
      fmt::format("{}.{}.weight", layer, names.routerModule),
      {weight},
      weight.shape};
  if (names.haveBiases) {
    QLORA_ASSIGN_OR_RETURN(
        router.bias, tensors.dense(module + ".bias", {config.experts.count}));
  }
  return router;
}

static Status findBias(const ModelConfig &config, TensorFinder &tensors,
                       int64_t out, StackedWeight &weight) {
  if (!config.family->experts.haveBiases)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(weight.bias,
                         tensors.dense(weight.name + "_bias",
                                       {config.experts.count, out}));
  return Status::ok();
}

StatusOr<ExpertWeights> findExperts(const ModelConfig &config,
                                    TensorFinder &tensors,
                                    const std::string &layer) {
  const Experts &names = config.family->experts;
  const int64_t hidden = config.hiddenSize, inner = config.experts.innerSize;
  ExpertWeights weights;
  weights.module = fmt::format("{}.{}", layer, names.module);
  const std::string gateUp = weights.module + ".gate_up_proj";
  const std::string down = weights.module + ".down_proj";
  QLORA_ASSIGN_OR_RETURN(weights.router, findRouter(config, tensors, layer));
  if (names.areStacked) {
    QLORA_ASSIGN_OR_RETURN(weights.gateUp, findStacked(config, tensors, gateUp,
                                                       hidden, 2 * inner));
    QLORA_ASSIGN_OR_RETURN(weights.down,
                           findStacked(config, tensors, down, inner, hidden));
  } else {
    const std::string each = fmt::format("{}.{}", layer, names.each);
    const std::span inputs = std::span(names.projections).first(2);
    const std::span outputs = std::span(names.projections).last(1);
    QLORA_ASSIGN_OR_RETURN(weights.gateUp, stack(config, tensors, gateUp, each,
                                                 inputs, inner, hidden));
    QLORA_ASSIGN_OR_RETURN(weights.down, stack(config, tensors, down, each,
                                               outputs, hidden, inner));
  }
  QLORA_RETURN_IF_ERROR(findBias(config, tensors, 2 * inner, weights.gateUp));
  QLORA_RETURN_IF_ERROR(findBias(config, tensors, hidden, weights.down));
  return weights;
}

} // namespace qlora
