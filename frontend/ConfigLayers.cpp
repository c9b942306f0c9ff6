// SPDX-License-Identifier: MIT

#include "frontend/ConfigLayers.h"

#include <string_view>

using nlohmann::json;

namespace qlora {

/// Values of the list `layer_types`.
static constexpr const char *kFull = "full_attention";
static constexpr const char *kSliding = "sliding_attention";

// Rotary positions ------------------------------------------------------------

/// Returns config.json with the RoPE keys for layers of `type`, as
/// readRopeConfig expects them. transformers 5 writes one object per layer type
/// into `rope_parameters`. Older versions write `rope_local_base_freq` for
/// layers with a window, and the usual keys for all other layers.
static StatusOr<json> ropeOfType(const json &root, const char *type) {
  json keys = root;
  const JsonFields fields(root);
  const json *parameters = fields.find("rope_parameters");
  const bool isByType = parameters && parameters->is_object() &&
                        (parameters->contains(kFull) ||
                         parameters->contains(kSliding));
  if (isByType) {
    for (const auto &[name, value] : parameters->items())
      if (name != kFull && name != kSliding)
        return Status::invalid("'rope_parameters' has '{}', which is not a "
                               "layer type; expected {} and {}",
                               name, kFull, kSliding);
    if (!parameters->contains(type))
      return Status::invalid("'rope_parameters' has no '{}'", type);
    keys["rope_parameters"] = parameters->at(type);
    return keys;
  }
  if (std::string_view(type) == kFull)
    return keys;
  keys.erase("rope_parameters");
  keys.erase("rope_scaling");
  keys.erase("rope_theta");
  if (const json *base = fields.find("rope_local_base_freq"))
    keys["rope_theta"] = *base;
  return keys;
}

static Status addRotary(const json &keys, double theta, ModelConfig &config) {
  Rotary rotary;
  QLORA_ASSIGN_OR_RETURN(rotary.rope,
                         readRopeConfig(keys,
                                        {config.headDim, theta,
                                         config.family->defaults.partialRotary},
                                        config.warnings));
  rotary.frequencies = inverseFrequencies(rotary.rope);
  rotary.longFrequencies = longFrequencies(rotary.rope);
  config.rotaries.push_back(std::move(rotary));
  return Status::ok();
}

/// Reads which layers have no RoPE. `no_rope_layers` has 0 for a layer without
/// RoPE and 1 for a layer with RoPE. If the list is missing, each
/// `no_rope_layer_interval`-th layer has no RoPE.
static Status skipLayers(const JsonFields &fields, ModelConfig &config) {
  QLORA_ASSIGN_OR_RETURN(const int64_t interval,
                         fields.integer("no_rope_layer_interval", 1, 4));
  const json *list = fields.find("no_rope_layers");
  const bool isList = list && list->is_array() && !list->empty();
  if (list && !list->is_array())
    return Status::invalid("'no_rope_layers' is {}; expected a list",
                           shortDump(*list));
  if (isList && list->size() != static_cast<size_t>(config.layers))
    return Status::invalid("'no_rope_layers' has {} entries for {} layers",
                           list->size(), config.layers);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (isList && (*list)[layer] != 0 && (*list)[layer] != 1)
      return Status::invalid("'no_rope_layers' has {} for layer {}; expected 1 "
                             "(with RoPE) or 0",
                             shortDump((*list)[layer]), layer);
    const bool turns =
        isList ? (*list)[layer] == 1 : (layer + 1) % interval != 0;
    config.rotaryOfLayer[layer] = turns ? 0 : -1;
  }
  return Status::ok();
}

static Status readRotaries(const json &root, ModelConfig &config) {
  const Family &family = *config.family;
  if (family.positions != PositionKind::kRotary) {
    config.rotaryOfLayer.assign(static_cast<size_t>(config.layers), -1);
    return Status::ok();
  }
  config.rotaryOfLayer.assign(static_cast<size_t>(config.layers), 0);
  if (family.mixer.rotary != RotaryRule::kByLayerType) {
    QLORA_RETURN_IF_ERROR(addRotary(root, family.defaults.ropeTheta, config));
    return family.mixer.rotary == RotaryRule::kSkipping
               ? skipLayers(JsonFields(root), config)
               : Status::ok();
  }
  QLORA_ASSIGN_OR_RETURN(const json full, ropeOfType(root, kFull));
  QLORA_ASSIGN_OR_RETURN(const json sliding, ropeOfType(root, kSliding));
  QLORA_RETURN_IF_ERROR(addRotary(full, family.defaults.ropeTheta, config));
  return addRotary(sliding, family.defaults.windowedRopeTheta, config);
}

// Windows ---------------------------------------------------------------------

/// Returns the attention window in tokens; 0 if no layer has a window.
static StatusOr<int64_t> readWindow(const JsonFields &fields,
                                    const Family &family) {
  const WindowRule rule = family.mixer.window;
  const bool hasSwitch =
      rule == WindowRule::kByLayers || rule == WindowRule::kUnrotated;
  QLORA_ASSIGN_OR_RETURN(const bool wanted,
                         fields.boolean("use_sliding_window", !hasSwitch));
  // transformers reads `use_sliding_window` only for families with `hasSwitch`.
  // In other families with a window, `use_sliding_window: false` is an error.
  if ((hasSwitch || rule == WindowRule::kNone) && !wanted)
    return 0;
  const bool missing = !fields.mentions("sliding_window");
  QLORA_ASSIGN_OR_RETURN(const int64_t window,
                         fields.integer("sliding_window", 1,
                                        missing ? family.defaults.window : 0));
  if (!window)
    return 0;
  if (rule == WindowRule::kNone)
    return Status::invalid("'sliding_window' is {}, but sliding windows are "
                           "not supported for {}; remove it if the model was "
                           "trained without a window",
                           window, family.architecture);
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
    if (type != kFull && type != kSliding)
      return Status::invalid("layer type '{}' is not supported; supported "
                             "are full_attention, sliding_attention",
                             type);
  return Status::ok();
}

/// Returns which layers have a window, for a config.json without `layer_types`.
static StatusOr<std::vector<bool>> slidingByRule(const JsonFields &fields,
                                                 const ModelConfig &config) {
  const Family &family = *config.family;
  QLORA_ASSIGN_OR_RETURN(const int64_t fullLayers,
                         fields.integer("max_window_layers", 0, 28));
  int64_t period = family.defaults.windowPeriod;
  if (*family.keys.windowPeriod) {
    QLORA_ASSIGN_OR_RETURN(
        period, fields.integer(family.keys.windowPeriod, 1, period));
  }
  std::vector<bool> slides(static_cast<size_t>(config.layers));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    switch (family.mixer.window) {
    case WindowRule::kNone:
      break;
    case WindowRule::kAllLayers:
      slides[layer] = true;
      break;
    case WindowRule::kByLayers:
      slides[layer] = layer >= fullLayers;
      break;
    case WindowRule::kPeriodic:
      slides[layer] = (layer + 1) % period != 0;
      break;
    case WindowRule::kUnrotated:
      slides[layer] = config.rotaryOfLayer[layer] < 0;
      break;
    }
  }
  return slides;
}

static Status readWindows(const JsonFields &fields, ModelConfig &config) {
  const Family &family = *config.family;
  QLORA_ASSIGN_OR_RETURN(const int64_t window, readWindow(fields, family));
  QLORA_ASSIGN_OR_RETURN(const std::vector<bool> slides,
                         slidingByRule(fields, config));
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                         fields.strings("layer_types"));
  if (fields.find("layer_types"))
    QLORA_RETURN_IF_ERROR(checkLayerTypes(types, config.layers));
  const bool slidesInAll = family.mixer.window == WindowRule::kAllLayers;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    bool sliding = window && slides[layer];
    if (!types.empty()) {
      const bool named = types[layer] == kSliding;
      if (named && !window)
        return Status::invalid("layer {} is sliding_attention, but "
                               "'sliding_window' is not set",
                               layer);
      if (sliding != named && slidesInAll)
        return Status::invalid("layer {} is full_attention, but every layer "
                               "of {} is sliding_attention",
                               layer, family.architecture);
      sliding = named;
    }
    config.windows.push_back(sliding ? window : 0);
  }
  return Status::ok();
}

/// Adds the family's default RoPE parameters if config.json has none.
static json withDefaultRope(json root, const Family &family) {
  const bool isThere =
      root.contains("rope_scaling") || root.contains("rope_parameters");
  if (*family.defaults.rope && !isThere)
    root["rope_scaling"] = json::parse(family.defaults.rope);
  return root;
}

Status readLayers(const json &root, ModelConfig &config) {
  QLORA_RETURN_IF_ERROR(
      readRotaries(withDefaultRope(root, *config.family), config));
  QLORA_RETURN_IF_ERROR(readWindows(JsonFields(root), config));
  if (config.family->mixer.rotary == RotaryRule::kByLayerType)
    for (int64_t layer = 0; layer < config.layers; ++layer)
      config.rotaryOfLayer[layer] = config.windows[layer] ? 1 : 0;
  return Status::ok();
}

} // namespace qlora
