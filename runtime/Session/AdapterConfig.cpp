// SPDX-License-Identifier: MIT

// Reading of adapter_config.json: what must agree, what must be off.

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "runtime/Session/Adapter.h"

namespace qlora {

using nlohmann::json;

/// Keys without a meaning for the numbers, whatever their value. A and B are
/// [out, in] whichever way fan_in_fan_out says that the weight is.
static const std::set<std::string, std::less<>> kIgnored = {
    "auto_mapping",        "base_model_name_or_path",
    "ensure_weight_tying", "fan_in_fan_out",
    "inference_mode",      "init_lora_weights",
    "lora_dropout",        "megatron_core",
    "peft_version",        "qalora_group_size",
    "revision",            "target_modules",
    "task_type",           "modules_to_save",
    "exclude_modules",     "layers_to_transform",
    "layers_pattern"};

static bool isOff(const json &value) {
  return value.is_null() || value == false || value == 0 ||
         (value.is_structured() && value.empty());
}

static StatusOr<json> readConfig(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return Status::error(StatusCode::kNotFound,
                         "cannot read '{}'; is it the folder of a PEFT "
                         "adapter?",
                         path);
  json config = json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    return Status::invalid("'{}' is not a JSON object", path);
  return config;
}

Status checkAdapterConfig(const std::string &folder, const Options &options) {
  std::string path = folder + "/adapter_config.json";
  QLORA_ASSIGN_OR_RETURN(json config, readConfig(path));
  // What PEFT takes when a key is missing.
  const std::pair<const char *, std::pair<json, json>> expected[] = {
      {"peft_type", {"LORA", "LORA"}},
      {"bias", {"none", "none"}},
      {"r", {options.value("lora_r"), 8}},
      {"lora_alpha", {options.value("lora_alpha"), 8}},
      {"use_rslora", {options.value("use_rslora"), false}},
      {"lora_bias", {options.value("lora_bias"), false}},
      {"use_dora", {options.value("use_dora"), false}},
      {"target_parameters",
       {options.value("target_parameters"), json::array()}},
      {"rank_pattern", {options.value("lora_rank_pattern"), json::object()}},
      {"alpha_pattern", {options.value("lora_alpha_pattern"), json::object()}},
  };
  std::set<std::string, std::less<>> compared;
  for (const auto &[key, values] : expected) {
    const auto &[ours, missing] = values;
    compared.insert(key);
    json theirs = config.value(key, missing);
    if (theirs.is_null())
      theirs = missing;
    if (theirs != ours)
      return Status::invalid("'{}': {} is {}, but this program was compiled "
                             "for {}",
                             path, key, theirs.dump(), ours.dump());
  }
  for (const auto &[key, value] : config.items())
    if (!kIgnored.contains(key) && !compared.contains(key) && !isOff(value))
      return Status::invalid("'{}': {} is {}, which is not supported", path,
                             key, value.dump());
  return Status::ok();
}

} // namespace qlora
