// SPDX-License-Identifier: MIT

// Writing of adapter folders.

#include "runtime/Session/Adapter.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/Core/DiskSpace.h"
#include "runtime/Core/Safetensors.h"

namespace qlora {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kBasePrefix = "base_model.model.";
/// The version of PEFT whose adapter_config.json we write.
constexpr const char *kPeftVersion = "0.19.0";

constexpr const char *kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer.model",
                                           "tokenizer_config.json",
                                           "chat_template.jinja",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt"};

constexpr const char *kWeights = "adapter_model.safetensors";
constexpr const char *kConfig = "adapter_config.json";

} // namespace

std::string peftName(const qlora_parameter &parameter) {
  std::string_view name = parameter.name;
  if (name.starts_with(kBasePrefix))
    return std::string(name);
  return std::string(kBasePrefix) + std::string(name);
}

std::vector<const qlora_parameter *>
trainedParameters(const LoadedModule &module) {
  std::vector<const qlora_parameter *> trained;
  for (const qlora_parameter &parameter : module.parameters())
    if (parameter.role != QLORA_ROLE_FROZEN)
      trained.push_back(&parameter);
  return trained;
}

/// "model.layers.0.self_attn.q_proj" for each A matrix, in table order.
static std::vector<std::string> adaptedModules(const LoadedModule &module) {
  std::vector<std::string> modules;
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    std::string name = peftName(*parameter);
    size_t suffix = name.find(".lora_A.");
    if (suffix != name.npos)
      modules.push_back(
          name.substr(kBasePrefix.size(), suffix - kBasePrefix.size()));
  }
  return modules;
}

static json targetModules(const LoadedModule &module, const Options &options) {
  const json &given = options.value("lora_target_modules");
  if (given.is_array())
    return given;
  std::vector<std::string> modules = adaptedModules(module);
  if (given != "all-linear")
    return modules;
  std::set<std::string> lastNames;
  for (const std::string &name : modules)
    lastNames.insert(name.substr(name.rfind('.') + 1));
  return lastNames;
}

/// PEFT writes 16, not 16.0.
static json shortNumber(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value)))
    return static_cast<int64_t>(value);
  return value;
}

json adapterConfig(const LoadedModule &module, const Options &options) {
  std::string base = options.text("base_model_name_or_path");
  if (base.empty())
    base = options.text("model_name_or_path");
  std::string init = options.text("init_lora_weights");
  json saved = options.value("modules_to_save");
  return {
      {"alpha_pattern", options.value("lora_alpha_pattern")},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights",
       init == "gaussian" ? json(init) : json(init == "true")},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_alpha", shortNumber(options.number("lora_alpha"))},
      {"lora_dropout", options.value("lora_dropout")},
      {"modules_to_save", saved.empty() ? json(nullptr) : saved},
      {"peft_type", "LORA"},
      {"peft_version", kPeftVersion},
      {"r", options.value("lora_r")},
      {"rank_pattern", options.value("lora_rank_pattern")},
      {"revision", nullptr},
      {"target_modules", targetModules(module, options)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", options.value("use_rslora")},
  };
}

static Status writeText(const std::string &path, const std::string &text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted,
                       "cannot write '{}': is the disk full?", path);
}

/// Those that the model folder has, with their bytes.
static std::vector<std::pair<fs::path, uint64_t>>
tokenizerFiles(const std::string &model) {
  std::vector<std::pair<fs::path, uint64_t>> files;
  for (const char *name : kTokenizerFiles) {
    const fs::path file = fs::path(model) / name;
    std::error_code error;
    if (const uint64_t bytes = fs::file_size(file, error); !error)
      files.emplace_back(file, bytes);
  }
  return files;
}

static Status copyInto(const std::string &folder, const fs::path &source) {
  const fs::path copy = fs::path(folder) / source.filename();
  std::error_code error;
  // Through links: Hugging Face's cache is made of them.
  fs::copy_file(source, copy, error);
  if (error)
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot copy '{}' to '{}': {}", source.string(),
                         copy.string(), error.message());
  fs::permissions(copy, fs::perms::owner_write, fs::perm_options::add, error);
  return Status::ok();
}

/// Of an arena that may not be read yet: then the items are for their sizes.
static std::vector<SafetensorsItem> itemsOf(const LoadedModule &module,
                                            const uint8_t *arena) {
  std::vector<SafetensorsItem> items;
  for (const qlora_parameter *parameter : trainedParameters(module))
    items.push_back(
        {peftName(*parameter),
         SafetensorsDtype::kF32,
         {parameter->shape, parameter->shape + parameter->rank},
         {arena ? arena + parameter->offset : nullptr, parameter->bytes}});
  return items;
}

/// As save_pretrained writes it.
static std::map<std::string, std::string> metadata() {
  return {{"format", "pt"}};
}

StatusOr<PreparedAdapter> PreparedAdapter::prepare(const LoadedModule &module,
                                                   const Options &options,
                                                   const std::string &folder) {
  const std::string staging = folder + "/.staging";
  std::error_code error;
  fs::remove_all(staging, error); // what a killed run left
  fs::create_directories(staging, error);
  if (error)
    return Status::error(StatusCode::kUnavailable, "cannot write to '{}': {}",
                         folder, error.message());
  PreparedAdapter adapter(module, options, folder, staging);
  QLORA_RETURN_IF_ERROR(adapter.fill());
  return adapter;
}

Status PreparedAdapter::fill() {
  QLORA_ASSIGN_OR_RETURN(
      const uint64_t weights,
      safetensorsBytes(itemsOf(*module, nullptr), metadata()));
  const std::string config = adapterConfig(*module, *options).dump(2) + "\n";
  const auto tokenizer = tokenizerFiles(options->text("model_name_or_path"));
  uint64_t bytes = weights + config.size();
  for (const auto &[file, size] : tokenizer)
    bytes += size;
  QLORA_RETURN_IF_ERROR(checkFreeSpace(folder, bytes));
  QLORA_RETURN_IF_ERROR(reserveFile(staging + "/" + kWeights, weights));
  QLORA_RETURN_IF_ERROR(writeText(staging + "/" + kConfig, config));
  for (const auto &[file, size] : tokenizer)
    QLORA_RETURN_IF_ERROR(copyInto(staging, file));
  return Status::ok();
}

PreparedAdapter::PreparedAdapter(PreparedAdapter &&other) noexcept
    : module(other.module), options(other.options),
      folder(std::move(other.folder)),
      staging(std::exchange(other.staging, std::string())) {}

PreparedAdapter::~PreparedAdapter() {
  if (staging.empty())
    return;
  std::error_code ignored;
  fs::remove_all(staging, ignored);
  fs::remove(folder, ignored); // where nothing else is in it
}

Status PreparedAdapter::write(std::span<const uint8_t> trained) {
  // Somebody may have removed the folder while the run was on.
  std::error_code error;
  if (!fs::exists(staging + "/" + kWeights, error))
    return writeAdapter(*module, *options, trained, folder);
  QLORA_RETURN_IF_ERROR(fillSafetensors(
      staging + "/" + kWeights, itemsOf(*module, trained.data()), metadata()));
  return commit();
}

Status PreparedAdapter::commit() const {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto &entry : fs::directory_iterator(staging, error))
    names.push_back(entry.path().filename());
  // An earlier adapter's: two tokenizers in one folder would be a third.
  for (const char *name : kTokenizerFiles)
    if (std::ranges::find(names, name) == names.end())
      fs::remove(fs::path(folder) / name, error);
  std::ranges::sort(names);
  for (const std::string &name : names) {
    fs::rename(fs::path(staging) / name, fs::path(folder) / name, error);
    if (error)
      return Status::error(StatusCode::kUnavailable, "cannot write '{}/{}': {}",
                           folder, name, error.message());
  }
  return Status::ok();
}

Status writeAdapter(const LoadedModule &module, const Options &options,
                    std::span<const uint8_t> trained,
                    const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(PreparedAdapter adapter,
                         PreparedAdapter::prepare(module, options, folder));
  return adapter.write(trained);
}

} // namespace qlora
