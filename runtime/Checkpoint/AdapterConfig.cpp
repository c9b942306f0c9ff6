// SPDX-License-Identifier: MIT

// Writes adapter_config.json. Checks the file of an existing adapter: some keys
// must equal this run's options, and unsupported features must be off.

#include <nlohmann/json.hpp>

#include <fstream>
#include <numbers>
#include <set>
#include <sstream>

#include "runtime/Base/JsonText.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

using nlohmann::ordered_json;

/// The version of PEFT whose adapter_config.json we write.
static constexpr const char *kPeftVersion = "0.19.0";

/// Returns whether PEFT would wrap an experts module for `target_parameters`.
static bool hasTargetParameters(std::string_view module,
                                const Options &options) {
  static constexpr std::string_view kWrapped = ".base_layer";
  if (module.ends_with(kWrapped))
    module.remove_suffix(kWrapped.size());
  for (const std::string &target : options.names("target_parameters")) {
    const std::string_view of =
        std::string_view(target).substr(0, target.rfind('.'));
    if (module == of || module.ends_with(fmt::format(".{}", of)))
      return true;
  }
  return false;
}

/// Returns the module name of each A matrix, in table order, such as
/// "model.layers.0.self_attn.q_proj".
static std::vector<std::string> adaptedModules(const LoadedModule &module,
                                               const Options &options) {
  std::vector<std::string> modules;
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    if (parameter->role != QLORA_ROLE_ADAPTER)
      continue;
    std::string name = parameter->name;
    const size_t suffix = std::min(name.find(".lora_A."),
                                   name.find(".lora_embedding_A"));
    if (suffix == name.npos)
      continue;
    name = name.substr(kPeftPrefix.size(), suffix - kPeftPrefix.size());
    if (!hasTargetParameters(name, options))
      modules.push_back(std::move(name));
  }
  return modules;
}

static ordered_json targetModules(const LoadedModule &module,
                                  const Options &options) {
  const ordered_json &given = options.value("lora_target_modules");
  if (given.is_array())
    return given;
  std::vector<std::string> modules = adaptedModules(module, options);
  if (given != "all-linear")
    return modules;
  std::set<std::string> lastNames;
  for (const std::string &name : modules)
    lastNames.insert(name.substr(name.rfind('.') + 1));
  return lastNames;
}

/// Returns an integer for a whole number: PEFT writes 16, not 16.0.
static ordered_json shortNumber(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value)))
    return static_cast<int64_t>(value);
  return value;
}

/// Returns null for an empty list: PEFT's value for a list that is not set.
static ordered_json orNull(const ordered_json &list) {
  return list.empty() ? ordered_json(nullptr) : list;
}

/// Multiplies each value of a pattern by `factor`.
static ordered_json timesAll(const ordered_json &pattern, double factor) {
  ordered_json numbers = ordered_json::object();
  for (const auto &[name, number] : pattern.items())
    numbers[name] = shortNumber(number.get<double>() * factor);
  return numbers;
}

/// Doubles the rank, and adjusts alpha to keep the scale, as PEFT does.
static void makePlain(ordered_json &config) {
  const double factor =
      config["use_rslora"] == true ? std::numbers::sqrt2 : 2.0;
  config["r"] = 2 * config["r"].get<int64_t>();
  config["lora_alpha"] =
      shortNumber(config["lora_alpha"].get<double>() * factor);
  config["rank_pattern"] = timesAll(config["rank_pattern"], 2);
  config["alpha_pattern"] = timesAll(config["alpha_pattern"], factor);
  config["init_lora_weights"] = true;
}

/// Returns init_lora_weights for the file. PEFT applies this initialization
/// before it loads the adapter. LoftQ's would change the base weights, so the
/// file has true instead.
static ordered_json initInConfig(const std::string &init) {
  return init == "true" || init == "false" || init == "loftq"
             ? ordered_json(init != "false")
             : ordered_json(init);
}

ordered_json adapterConfig(const LoadedModule &module, const Options &options,
                           AdapterForm form) {
  std::string base = options.text("adapter_base_name");
  if (base.empty())
    base = options.text("model_name_or_path");
  const std::string init = options.text("init_lora_weights");
  ordered_json config = {
      {"alpha_pattern", options.value("lora_alpha_pattern")},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", base},
      {"bias", options.value("bias")},
      {"exclude_modules", orNull(options.value("exclude_modules"))},
      {"fan_in_fan_out", options.recordedMetadata("adapts_in_out") == true},
      {"inference_mode", true},
      {"init_lora_weights", initInConfig(init)},
      {"layers_pattern", orNull(options.value("layers_pattern"))},
      {"layers_to_transform", orNull(options.value("layers_to_transform"))},
      {"lora_alpha", shortNumber(options.number("lora_alpha"))},
      {"lora_bias", options.value("lora_bias")},
      {"lora_dropout", options.value("lora_dropout")},
      {"modules_to_save", orNull(options.value("modules_to_save"))},
      {"peft_type", "LORA"},
      {"peft_version", kPeftVersion},
      {"r", options.value("lora_r")},
      {"rank_pattern", options.value("lora_rank_pattern")},
      {"revision", nullptr},
      {"target_modules", targetModules(module, options)},
      {"target_parameters", orNull(options.value("target_parameters"))},
      {"task_type", "CAUSAL_LM"},
      {"trainable_token_indices",
       orNull(options.value("trainable_token_indices"))},
      {"use_dora", options.value("use_dora")},
      {"use_rslora", options.value("use_rslora")},
  };
  if (form == AdapterForm::kPlain && leavesResidual(init))
    makePlain(config);
  return config;
}

/// Keys that are not compared: they do not affect results, or are checked
/// separately. The layout of A and B does not depend on fan_in_fan_out.
static const std::set<std::string, std::less<>> kIgnored = {
    "auto_mapping",        "base_model_name_or_path",
    "ensure_weight_tying", "fan_in_fan_out",
    "inference_mode",      "init_lora_weights",
    "lora_dropout",        "megatron_core",
    "peft_type",           "peft_version",
    "qalora_group_size",   "revision",
    "target_modules",      "task_type",
    "modules_to_save",     "exclude_modules",
    "layers_to_transform", "layers_pattern"};

static bool isOff(const ordered_json &value) {
  return value.is_null() || value == false || value == 0 ||
         (value.is_structured() && value.empty());
}

static StatusOr<ordered_json> readConfig(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return Status::notFound(
        "cannot read '{}'. Fix: give the folder of a PEFT adapter", path);
  ordered_json config =
      ordered_json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    return Status::invalid("'{}' is not a JSON object", path);
  return config;
}

/// Formats a value in the syntax of the command line.
static std::string flagText(const ordered_json &value) {
  if (value.is_object())
    return fmt::format("'{}'", dumpJson(value));
  if (value.is_string())
    return fmt::format("'{}'", value.get<std::string>());
  if (!value.is_array())
    return dumpJson(value);
  std::vector<std::string> names;
  for (const ordered_json &name : value)
    names.push_back(name.is_string() ? name.get<std::string>()
                                     : dumpJson(name));
  return fmt::format("{}", fmt::join(names, ","));
}

/// An adapter is compared with a program, or with options before compilation.
enum class Compared { kProgram, kOptions };

static Status differs(const std::string &path, const char *key,
                      const ordered_json &theirs, std::string_view option,
                      const Options &options, Compared with) {
  const std::string ours = dumpJson(options.value(option));
  const std::string flag = flagSpelling(option), value = flagText(theirs);
  if (with == Compared::kOptions)
    return Status::invalid("'{}': {} is {}, but {} is {}. Fix: {} {}", path,
                           key, dumpJson(theirs), options.spelling(option),
                           ours, flag, value);
  return Status::invalid("'{}': {} is {}, but this program was compiled for "
                         "{}. Fix: compile with {} {}",
                         path, key, dumpJson(theirs), ours, flag, value);
}

/// Checks that the adapter's tensors are the program's adapter parameters.
static Status checkTargets(const std::string &folder,
                           const ordered_json &config,
                           const LoadedModule &module, const Options &options) {
  QLORA_ASSIGN_OR_RETURN(
      const SafetensorsFile file,
      SafetensorsFile::open(folder + "/adapter_model.safetensors"));
  const Status status = checkAdapterTensors(module, file);
  if (status.isOk() || !config.contains("target_modules"))
    return status;
  const ordered_json &theirs = config["target_modules"];
  return Status::error(
      status.code(),
      "{}. The adapter's target_modules are {}, and this program was compiled "
      "for {}. Fix: compile with --lora-target-modules {}",
      status.message(), dumpJson(theirs),
      dumpJson(options.value("lora_target_modules")), flagText(theirs));
}

/// Whether the adapter was trained on this run's base: both have the same
/// init_lora_weights, or neither initialization changes the base.
static bool hasOurBase(const ordered_json &theirs, const Options &options) {
  const std::string init = options.text("init_lora_weights");
  return theirs == init ||
         (!leavesResidual(theirs.is_string() ? theirs.get<std::string>()
                                             : "") &&
          !leavesResidual(init));
}

namespace {
/// A key that must equal an option. `missing`: PEFT's default for the key.
struct ComparedKey {
  const char *key, *option;
  ordered_json missing;

  ordered_json of(const ordered_json &config) const;
};
} // namespace

static std::span<const ComparedKey> comparedKeys() {
  static const ComparedKey keys[] = {
      {"bias", "bias", "none"},
      {"r", "lora_r", 8},
      {"lora_alpha", "lora_alpha", 8},
      {"use_rslora", "use_rslora", false},
      {"lora_bias", "lora_bias", false},
      {"use_dora", "use_dora", false},
      {"target_parameters", "target_parameters", ordered_json::array()},
      {"trainable_token_indices", "trainable_token_indices",
       ordered_json::array()},
      {"rank_pattern", "lora_rank_pattern", ordered_json::object()},
      {"alpha_pattern", "lora_alpha_pattern", ordered_json::object()},
  };
  return keys;
}

/// Returns the key's value in adapter_config.json, in the option's type.
ordered_json ComparedKey::of(const ordered_json &config) const {
  ordered_json value = config.value(key, missing);
  if (value.is_null())
    return missing;
  // PEFT allows {module: list} for trainable_token_indices. Only the list
  // counts, since tensor names identify the module.
  if (missing.is_array() && value.is_object() && value.size() == 1)
    return *value.begin();
  return value;
}

/// Whether two patterns may match one module: if one is a regular expression,
/// or a name is the suffix of another.
static bool canOverlap(const ordered_json &patterns) {
  for (const auto &[key, number] : patterns.items()) {
    if (key.find_first_of("*+?()[]{}|^$\\") != key.npos)
      return true;
    for (const auto &[other, unused] : patterns.items())
      if (other.ends_with("." + key))
        return true;
  }
  return false;
}

/// Compares two maps of patterns. PEFT sorts patterns when it saves an adapter.
/// Their order matters only if a module matches several: the first one applies.
static bool areSame(const ordered_json &theirs, const ordered_json &ours) {
  if (theirs == ours || !theirs.is_object() || canOverlap(ours))
    return theirs == ours;
  return nlohmann::json(theirs) == nlohmann::json(ours);
}

static Status compareConfig(const std::string &path, const ordered_json &config,
                            const Options &options, Compared with) {
  constexpr const char *kInit = "init_lora_weights";
  if (const auto init = config.value(kInit, ordered_json(true));
      !hasOurBase(init, options))
    return differs(path, kInit, init, kInit, options, with);
  if (const ordered_json type = config.value("peft_type", ordered_json("LORA"));
      type != "LORA")
    return Status::invalid("'{}': peft_type is {}; only LORA is supported",
                           path, dumpJson(type));
  for (const ComparedKey &compared : comparedKeys()) {
    const ordered_json theirs = compared.of(config);
    if (!areSame(theirs, options.value(compared.option)))
      return differs(path, compared.key, theirs, compared.option, options,
                     with);
  }
  for (const auto &[key, value] : config.items())
    if (!kIgnored.contains(key) && !isOff(value) &&
        std::ranges::find(comparedKeys(), key, &ComparedKey::key) ==
            comparedKeys().end())
      return Status::invalid("'{}': {} is {}, which is not supported", path,
                             key, dumpJson(value));
  return Status::ok();
}

/// Keys of adapter_config.json that name modules or the base model, and their
/// options. Null means the same as no key.
static constexpr std::pair<const char *, const char *> kNamingKeys[] = {
    {"base_model_name_or_path", "model_name_or_path"},
    {"target_modules", "lora_target_modules"},
    {"modules_to_save", "modules_to_save"},
    {"exclude_modules", "exclude_modules"},
    {"layers_to_transform", "layers_to_transform"},
    {"layers_pattern", "layers_pattern"},
};

StatusOr<std::vector<OptionSetting>>
adapterSettings(const std::string &folder) {
  const std::string path = folder + "/adapter_config.json";
  QLORA_ASSIGN_OR_RETURN(const ordered_json config, readConfig(path));
  std::vector<OptionSetting> settings;
  const auto add = [&](const char *key, const char *option,
                       const ordered_json &value) {
    settings.push_back(
        {findOption(optionTable(), option),
         value.is_string() ? value.get<std::string>() : dumpJson(value),
         fmt::format("'{}': {}", path, key)});
  };
  for (const ComparedKey &compared : comparedKeys())
    add(compared.key, compared.option, compared.of(config));
  for (const auto &[key, option] : kNamingKeys)
    if (const auto value = config.find(key);
        value != config.end() && !value->is_null())
      add(key, option, *value);
  constexpr const char *kInit = "init_lora_weights";
  if (const auto init = config.value(kInit, ordered_json(true));
      init.is_string() && leavesResidual(init.get<std::string>()))
    add(kInit, kInit, init);
  return settings;
}

bool changesBase(const std::string &folder) {
  static const std::set<std::string, std::less<>> kUnchanged = {
      "gaussian", "eva", "orthogonal"};
  const auto config = readConfig(folder + "/adapter_config.json");
  if (!config.isOk())
    return false;
  const auto init = config->value("init_lora_weights", ordered_json(true));
  return init.is_string() && !kUnchanged.contains(init.get<std::string>());
}

Status checkAdapterOptions(const std::string &folder, const Options &options) {
  const std::string path = folder + "/adapter_config.json";
  QLORA_ASSIGN_OR_RETURN(const ordered_json config, readConfig(path));
  return compareConfig(path, config, options, Compared::kOptions);
}

Status checkAdapterConfig(const std::string &folder, const LoadedModule &module,
                          const Options &options) {
  const std::string path = folder + "/adapter_config.json";
  QLORA_ASSIGN_OR_RETURN(const ordered_json config, readConfig(path));
  QLORA_RETURN_IF_ERROR(
      compareConfig(path, config, options, Compared::kProgram));
  return checkTargets(folder, config, module, options);
}

} // namespace qlora
