// SPDX-License-Identifier: MIT

// Reads the keys of rotary positions in config.json.

#include "frontend/Rope.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string_view>

#include "frontend/JsonFields.h"

using nlohmann::json;

namespace qlora {

/// Returns the object with the RoPE parameters. Refuses a config.json in which
/// `rope_scaling` and `rope_parameters` differ, although transformers accepts
/// it.
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

namespace {
/// A kind of RoPE, its names, and its keys in addition to the common ones.
struct Kind {
  RopeKind kind;
  const char *name;
  const char *olderName;
  std::vector<std::string_view> parameters;
};
} // namespace

static std::span<const Kind> kinds() {
  static const Kind all[] = {
      {RopeKind::kDefault, "default", "", {}},
      {RopeKind::kLinear, "linear", "", {"factor"}},
      {RopeKind::kDynamic,
       "dynamic",
       "",
       {"factor", "original_max_position_embeddings"}},
      {RopeKind::kYarn,
       "yarn",
       "",
       {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "original_max_position_embeddings", "truncate"}},
      {RopeKind::kLongRope,
       "longrope",
       "su",
       {"factor", "attention_factor", "long_factor", "short_factor",
        "original_max_position_embeddings"}},
      {RopeKind::kLlama3,
       "llama3",
       "",
       {"factor", "high_freq_factor", "low_freq_factor",
        "original_max_position_embeddings"}},
  };
  return all;
}

static const Kind &kindOf(RopeKind kind) {
  return *std::ranges::find(kinds(), kind, &Kind::kind);
}

const char *ropeKindName(RopeKind kind) { return kindOf(kind).name; }

static StatusOr<RopeKind> parseKind(const std::string &name) {
  std::vector<std::string_view> names;
  for (const Kind &kind : kinds()) {
    if (name == kind.name || (*kind.olderName && name == kind.olderName))
      return kind.kind;
    names.push_back(kind.name);
  }
  return Status::invalid("RoPE type '{}' is not supported; supported are {}",
                         name, fmt::join(names, ", "));
}

static Status checkParameterKeys(const json &parameters, RopeKind kind,
                                 std::vector<std::string> &warnings) {
  std::set<std::string_view> used = {"rope_theta", "rope_type", "type",
                                     "partial_rotary_factor"};
  used.insert(kindOf(kind).parameters.begin(), kindOf(kind).parameters.end());
  for (const auto &[name, value] : parameters.items()) {
    if (value.is_object())
      return Status::invalid("RoPE parameters per layer type ('{}') are not "
                             "supported by this family",
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

/// Reads the original context length as transformers does: from the key outside
/// of the RoPE parameters, else inside, else max_position_embeddings.
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

/// Returns YaRN's factor of cos and sin, 0.1 m ln(s) + 1.
static double yarnScale(double factor, double m) {
  return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

static Status readYarn(const JsonFields &fields, const JsonFields &parameters,
                       RopeConfig &rope) {
  QLORA_ASSIGN_OR_RETURN(rope.originalMaxPositions,
                         originalPositions(fields, parameters));
  QLORA_ASSIGN_OR_RETURN(rope.betaFast, parameters.positive("beta_fast", 32));
  QLORA_ASSIGN_OR_RETURN(rope.betaSlow, parameters.positive("beta_slow", 1));
  QLORA_ASSIGN_OR_RETURN(rope.truncate, parameters.boolean("truncate", true));
  double scale = yarnScale(rope.factor, 1);
  if (parameters.find("mscale") && parameters.find("mscale_all_dim")) {
    QLORA_ASSIGN_OR_RETURN(const double some, parameters.positive("mscale"));
    QLORA_ASSIGN_OR_RETURN(const double all,
                           parameters.positive("mscale_all_dim"));
    scale = yarnScale(rope.factor, some) / yarnScale(rope.factor, all);
  }
  QLORA_ASSIGN_OR_RETURN(rope.attentionFactor,
                         parameters.positive("attention_factor", scale));
  return Status::ok();
}

static StatusOr<std::vector<double>>
readFactors(const JsonFields &parameters, const char *key, int64_t count) {
  const json *value = parameters.find(key);
  const bool isList =
      value && value->is_array() && std::ranges::all_of(*value, [](auto &one) {
        return one.is_number() && one.template get<double>() > 0;
      });
  if (!isList || static_cast<int64_t>(value->size()) != count)
    return Status::invalid("RoPE parameter '{}' is {}; expected {} numbers "
                           "above 0, one per pair of rotated columns",
                           key, value ? shortDump(*value) : "missing", count);
  return value->get<std::vector<double>>();
}

/// Reads longrope's keys. The default of `attention_factor` follows from
/// `factor`, whose default is max_position_embeddings divided by the original
/// context length.
static Status readLongRope(const JsonFields &fields,
                           const JsonFields &parameters, RopeConfig &rope) {
  QLORA_ASSIGN_OR_RETURN(rope.shortFactors,
                         readFactors(parameters, "short_factor",
                                     rope.rotated / 2));
  QLORA_ASSIGN_OR_RETURN(rope.longFactors,
                         readFactors(parameters, "long_factor",
                                     rope.rotated / 2));
  QLORA_ASSIGN_OR_RETURN(rope.originalMaxPositions,
                         originalPositions(fields, parameters));
  QLORA_ASSIGN_OR_RETURN(const int64_t longest,
                         fields.integer("max_position_embeddings", 1));
  QLORA_ASSIGN_OR_RETURN(
      rope.factor,
      parameters.positive("factor",
                          static_cast<double>(longest) /
                              static_cast<double>(rope.originalMaxPositions)));
  const double scale =
      rope.factor <= 1
          ? 1.0
          : std::sqrt(1 + std::log(rope.factor) /
                              std::log(double(rope.originalMaxPositions)));
  QLORA_ASSIGN_OR_RETURN(rope.attentionFactor,
                         parameters.positive("attention_factor", scale));
  return Status::ok();
}

/// Reads dynamic NTK's key. For sequences longer than max_position_embeddings,
/// theta grows with the sequence length.
static Status readDynamic(const JsonFields &fields, RopeConfig &rope) {
  QLORA_ASSIGN_OR_RETURN(rope.originalMaxPositions,
                         fields.integer("max_position_embeddings", 1));
  if (rope.rotated > 2)
    return Status::ok();
  return Status::invalid("RoPE of type dynamic needs more than {} rotated "
                         "columns",
                         rope.rotated);
}

static Status readKind(const JsonFields &fields, const JsonFields &parameters,
                       RopeConfig &rope) {
  if (rope.kind != RopeKind::kDefault && rope.kind != RopeKind::kLongRope) {
    QLORA_ASSIGN_OR_RETURN(rope.factor, parameters.positive("factor"));
  }
  switch (rope.kind) {
  case RopeKind::kDefault:
  case RopeKind::kLinear:
    return Status::ok();
  case RopeKind::kDynamic:
    return readDynamic(fields, rope);
  case RopeKind::kYarn:
    return readYarn(fields, parameters, rope);
  case RopeKind::kLongRope:
    return readLongRope(fields, parameters, rope);
  case RopeKind::kLlama3:
    return readLlama3(fields, parameters, rope);
  }
  return Status::ok();
}

/// Reads how many columns of a head rotate.
static Status readRotated(const JsonFields &fields,
                          const JsonFields &parameters,
                          const RopeDefaults &defaults, RopeConfig &rope) {
  constexpr const char *kKey = "partial_rotary_factor";
  const double missing = defaults.partialRotary ? defaults.partialRotary : 1;
  QLORA_ASSIGN_OR_RETURN(const double outer, fields.positive(kKey, missing));
  QLORA_ASSIGN_OR_RETURN(const double part, parameters.positive(kKey, outer));
  if (part != 1 && !defaults.partialRotary)
    return Status::invalid("'{}' is {}; only 1 is supported", kKey, part);
  if (part > 1)
    return Status::invalid("'{}' is {}; expected at most 1", kKey, part);
  rope.rotated =
      static_cast<int64_t>(static_cast<double>(defaults.headDim) * part);
  if (rope.rotated % 2 || rope.rotated < 2)
    return Status::invalid("RoPE rotates {} of the {} columns of a head; the "
                           "number must be even",
                           rope.rotated, defaults.headDim);
  return Status::ok();
}

StatusOr<RopeConfig> readRopeConfig(const json &config,
                                    const RopeDefaults &defaults,
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
                         fields.positive("rope_theta", defaults.theta));
  QLORA_ASSIGN_OR_RETURN(rope.theta,
                         parameters.positive("rope_theta", outerTheta));
  QLORA_RETURN_IF_ERROR(readRotated(fields, parameters, defaults, rope));
  QLORA_RETURN_IF_ERROR(readKind(fields, parameters, rope));
  for (float frequency : inverseFrequencies(rope))
    if (!std::isfinite(frequency))
      return Status::invalid("RoPE with rope_theta {} and factor {} has the "
                             "frequency {}; expected a finite number",
                             rope.theta, rope.factor, frequency);
  return rope;
}

} // namespace qlora
