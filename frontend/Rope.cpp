// SPDX-License-Identifier: MIT

// RoPE as transformers' modeling_rope_utils.py has it. PyTorch evaluates
// number / tensor as reciprocal(tensor) * number, which rounds twice; so do
// we.

#include "frontend/Rope.h"

#include <cmath>
#include <numbers>
#include <set>
#include <string_view>

#include "frontend/JsonFields.h"

using nlohmann::json;

namespace qlora {

/// number / tensor, in PyTorch's rounding.
static float divideNumber(double number, float x) {
  return (1.0f / x) * static_cast<float>(number);
}

/// Llama 3.1: wavelengths much longer than the original context are
/// stretched by `factor`, short ones are kept, and between them a ramp.
static float stretchLlama3(const RopeConfig &rope, float frequency) {
  const double context = static_cast<double>(rope.originalMaxPositions);
  const auto lowWavelength = static_cast<float>(context / rope.lowFreqFactor);
  const auto highWavelength = static_cast<float>(context / rope.highFreqFactor);
  const auto factor = static_cast<float>(rope.factor);
  const float wavelength = divideNumber(2 * std::numbers::pi, frequency);
  if (wavelength > lowWavelength)
    return frequency / factor;
  if (wavelength < highWavelength)
    return frequency;
  const float smooth =
      (divideNumber(context, wavelength) -
       static_cast<float>(rope.lowFreqFactor)) /
      static_cast<float>(rope.highFreqFactor - rope.lowFreqFactor);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

std::vector<float> inverseFrequencies(const RopeConfig &rope, int64_t headDim) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < headDim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(headDim);
    float frequency = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.kind == RopeKind::kLinear)
      frequency /= static_cast<float>(rope.factor);
    if (rope.kind == RopeKind::kLlama3)
      frequency = stretchLlama3(rope, frequency);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

/// The object with the parameters: rope_scaling wins in transformers, so two
/// different ones would be a guess.
static StatusOr<json> findParameters(const JsonFields &fields) {
  const json *scaling = fields.find("rope_scaling");
  const json *parameters = fields.find("rope_parameters");
  for (const json *value : {scaling, parameters})
    if (value && !value->is_object())
      return Status::invalid("'rope_scaling' or 'rope_parameters' is {}; "
                             "expected an object",
                             shortDump(*value));
  if (scaling && parameters && *scaling != *parameters)
    return Status::invalid("'rope_scaling' {} and 'rope_parameters' {} "
                           "contradict each other; remove one",
                           shortDump(*scaling), shortDump(*parameters));
  if (scaling)
    return *scaling;
  return parameters ? *parameters : json::object();
}

const char *ropeKindName(RopeKind kind) {
  switch (kind) {
  case RopeKind::kDefault:
    return "default";
  case RopeKind::kLinear:
    return "linear";
  case RopeKind::kLlama3:
    return "llama3";
  }
  return "";
}

static StatusOr<RopeKind> parseKind(const std::string &name) {
  for (RopeKind kind :
       {RopeKind::kDefault, RopeKind::kLinear, RopeKind::kLlama3})
    if (name == ropeKindName(kind))
      return kind;
  return Status::invalid("RoPE type '{}' is not supported; supported are "
                         "default, linear, llama3",
                         name);
}

static Status checkParameterKeys(const json &parameters, RopeKind kind,
                                 std::vector<std::string> &warnings) {
  std::set<std::string_view> used = {"rope_theta", "rope_type", "type",
                                     "partial_rotary_factor"};
  if (kind != RopeKind::kDefault)
    used.insert("factor");
  if (kind == RopeKind::kLlama3)
    used.insert({"low_freq_factor", "high_freq_factor",
                 "original_max_position_embeddings"});
  for (const auto &[name, value] : parameters.items()) {
    if (value.is_object())
      return Status::invalid("RoPE parameters per layer type ('{}') are not "
                             "supported",
                             name);
    if (name.find("mrope") != std::string::npos && !value.is_null())
      return Status::invalid("RoPE parameter '{}' is not supported", name);
    if (!used.contains(name) && !value.is_null())
      warnings.push_back(fmt::format("RoPE parameter '{}' ({}) is not used "
                                     "and was ignored",
                                     name, shortDump(value)));
  }
  return Status::ok();
}

/// transformers lets a key beside the parameters win over one in them, and
/// falls back to the longest position.
static StatusOr<int64_t> originalPositions(const JsonFields &fields,
                                           const JsonFields &parameters) {
  constexpr const char *kKey = "original_max_position_embeddings";
  if (fields.find(kKey))
    return fields.integer(kKey, 1);
  if (parameters.find(kKey))
    return parameters.integer(kKey, 1);
  return fields.integer("max_position_embeddings", 1);
}

static Status readLlama3(const JsonFields &fields, const JsonFields &parameters,
                         RopeConfig &rope) {
  QLORA_ASSIGN_OR_RETURN(rope.lowFreqFactor,
                         parameters.positive("low_freq_factor"));
  QLORA_ASSIGN_OR_RETURN(rope.highFreqFactor,
                         parameters.positive("high_freq_factor"));
  QLORA_ASSIGN_OR_RETURN(rope.originalMaxPositions,
                         originalPositions(fields, parameters));
  if (rope.highFreqFactor <= rope.lowFreqFactor)
    return Status::invalid("high_freq_factor {} is not above low_freq_factor "
                           "{}",
                           rope.highFreqFactor, rope.lowFreqFactor);
  return Status::ok();
}

StatusOr<RopeConfig> readRopeConfig(const json &config,
                                    std::vector<std::string> &warnings) {
  const JsonFields fields(config);
  QLORA_ASSIGN_OR_RETURN(const json object, findParameters(fields));
  const JsonFields parameters(object);
  QLORA_ASSIGN_OR_RETURN(std::string type,
                         parameters.string("type", "default"));
  QLORA_ASSIGN_OR_RETURN(type, parameters.string("rope_type", type));
  RopeConfig rope;
  QLORA_ASSIGN_OR_RETURN(rope.kind, parseKind(type));
  QLORA_RETURN_IF_ERROR(checkParameterKeys(object, rope.kind, warnings));
  QLORA_ASSIGN_OR_RETURN(const double outerTheta,
                         fields.positive("rope_theta", 10000.0));
  QLORA_ASSIGN_OR_RETURN(rope.theta,
                         parameters.positive("rope_theta", outerTheta));
  QLORA_ASSIGN_OR_RETURN(const double rotated,
                         parameters.positive("partial_rotary_factor", 1.0));
  if (rotated != 1.0)
    return Status::invalid("'partial_rotary_factor' is {}; only 1 is "
                           "supported",
                           rotated);
  if (rope.kind != RopeKind::kDefault) {
    QLORA_ASSIGN_OR_RETURN(rope.factor, parameters.positive("factor"));
  }
  if (rope.kind == RopeKind::kLlama3)
    QLORA_RETURN_IF_ERROR(readLlama3(fields, parameters, rope));
  return rope;
}

} // namespace qlora
