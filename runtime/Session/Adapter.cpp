// SPDX-License-Identifier: MIT

// Writing of adapter folders.

#include "runtime/Session/Adapter.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

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

/// Files that appear in `folder` together. Removed when not committed.
class Staging {
public:
  static StatusOr<Staging> create(const std::string &folder) {
    fs::path path = fs::path(folder) / ".staging";
    std::error_code error;
    fs::remove_all(path, error); // what a killed run left
    fs::create_directories(path, error);
    if (error)
      return Status::error(StatusCode::kUnavailable,
                           "cannot write to '{}': "
                           "{}",
                           folder, error.message());
    return Staging(folder, std::move(path));
  }
  Staging(Staging &&other) noexcept
      : folder(std::move(other.folder)),
        path(std::exchange(other.path, fs::path())) {}
  ~Staging() {
    std::error_code ignored;
    if (!path.empty())
      fs::remove_all(path, ignored);
  }

  std::string file(const char *name) const { return (path / name).string(); }

  Status commit() {
    std::vector<fs::path> files;
    std::error_code error;
    for (const auto &entry : fs::directory_iterator(path, error))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path &file : files) {
      fs::rename(file, fs::path(folder) / file.filename(), error);
      if (error)
        return Status::error(StatusCode::kUnavailable,
                             "cannot write '{}/{}': {}", folder,
                             file.filename().string(), error.message());
    }
    return Status::ok();
  }

private:
  Staging(std::string folder, fs::path path)
      : folder(std::move(folder)), path(std::move(path)) {}
  std::string folder;
  fs::path path;
};

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

static Status copyTokenizer(const std::string &model, const Staging &staging) {
  for (const char *name : kTokenizerFiles) {
    fs::path source = fs::path(model) / name;
    std::error_code error;
    if (!fs::exists(source, error))
      continue;
    // Through links: Hugging Face's cache is made of them.
    fs::copy_file(source, staging.file(name), error);
    if (error)
      return Status::error(StatusCode::kResourceExhausted,
                           "cannot copy '{}': {}", source.string(),
                           error.message());
    fs::permissions(staging.file(name), fs::perms::owner_write,
                    fs::perm_options::add, error);
  }
  return Status::ok();
}

Status writeAdapter(const LoadedModule &module, const Options &options,
                    std::span<const uint8_t> trained,
                    const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(Staging staging, Staging::create(folder));
  std::vector<SafetensorsItem> items;
  for (const qlora_parameter *parameter : trainedParameters(module))
    items.push_back({peftName(*parameter),
                     SafetensorsDtype::kF32,
                     {parameter->shape, parameter->shape + parameter->rank},
                     trained.subspan(parameter->offset, parameter->bytes)});
  QLORA_RETURN_IF_ERROR(
      writeSafetensors(staging.file("adapter_model.safetensors"),
                       std::move(items), {{"format", "pt"}}));
  QLORA_RETURN_IF_ERROR(
      writeText(staging.file("adapter_config.json"),
                adapterConfig(module, options).dump(2) + "\n"));
  QLORA_RETURN_IF_ERROR(
      copyTokenizer(options.text("model_name_or_path"), staging));
  return staging.commit();
}

} // namespace qlora
