// SPDX-License-Identifier: MIT

// Writing of adapter folders.

#include "runtime/Session/Adapter.h"

#include <algorithm>
#include <set>

#include "runtime/Base/UserFiles.h"
#include "runtime/Module/ParameterCounts.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/Safetensors.h"

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

constexpr const char *kAdapterWeights = "adapter_model.safetensors";
constexpr const char *kModelWeights = "model.safetensors";
constexpr const char *kAdapterConfig = "adapter_config.json";
/// Of a model folder, as they are.
constexpr const char *kModelConfigs[] = {"config.json",
                                         "generation_config.json"};

} // namespace

bool holdsAdapter(const fs::path &folder) {
  std::error_code ignored;
  return fs::exists(folder / kAdapterWeights, ignored) ||
         fs::exists(folder / kModelWeights, ignored);
}

bool trainsModel(const LoadedModule &module) {
  const auto trained = trainedParameters(module);
  return !trained.empty() &&
         std::ranges::none_of(trained, [](const qlora_parameter *parameter) {
           return parameter->role == QLORA_ROLE_ADAPTER;
         });
}

const char *trainedFile(const LoadedModule &module) {
  return trainsModel(module) ? kModelWeights : kAdapterWeights;
}

static std::string nameInFile(const qlora_parameter &parameter, bool isModel) {
  std::string_view name = parameter.name;
  if (isModel || name.starts_with(kBasePrefix))
    return std::string(name);
  return std::string(kBasePrefix) + std::string(name);
}

std::string trainedName(const LoadedModule &module,
                        const qlora_parameter &parameter) {
  return nameInFile(parameter, trainsModel(module));
}

std::vector<const qlora_parameter *>
trainedParameters(const LoadedModule &module) {
  std::vector<const qlora_parameter *> trained;
  for (const qlora_parameter &parameter : module.parameters())
    if (isTrained(parameter.role))
      trained.push_back(&parameter);
  return trained;
}

/// True for the module of experts that `target_parameters` name, as PEFT wraps
/// it.
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

/// "model.layers.0.self_attn.q_proj" for each A matrix, in table order.
static std::vector<std::string> adaptedModules(const LoadedModule &module,
                                               const Options &options) {
  std::vector<std::string> modules;
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    std::string name = nameInFile(*parameter, /*isModel=*/false);
    const size_t suffix = std::min(name.find(".lora_A."),
                                   name.find(".lora_embedding_A"));
    if (suffix == name.npos)
      continue;
    name = name.substr(kBasePrefix.size(), suffix - kBasePrefix.size());
    if (!hasTargetParameters(name, options))
      modules.push_back(std::move(name));
  }
  return modules;
}

static json targetModules(const LoadedModule &module, const Options &options) {
  const json &given = options.value("lora_target_modules");
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

/// PEFT writes 16, not 16.0.
static json shortNumber(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value)))
    return static_cast<int64_t>(value);
  return value;
}

/// PEFT writes null for what is not given.
static json orNull(const json &list) {
  return list.empty() ? json(nullptr) : list;
}

json adapterConfig(const LoadedModule &module, const Options &options) {
  std::string base = options.text("base_model_name_or_path");
  if (base.empty())
    base = options.text("model_name_or_path");
  std::string init = options.text("init_lora_weights");
  return {
      {"alpha_pattern", options.value("lora_alpha_pattern")},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"exclude_modules", orNull(options.value("exclude_modules"))},
      {"fan_in_fan_out", options.recordedFact("adapts_in_out") == true},
      {"inference_mode", true},
      {"init_lora_weights",
       init == "gaussian" ? json(init) : json(init == "true")},
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
      {"use_dora", options.value("use_dora")},
      {"use_rslora", options.value("use_rslora")},
  };
}

/// What goes along, of what the model folder has, with its bytes.
static std::vector<std::pair<fs::path, uint64_t>>
copiedFiles(const LoadedModule &module, const Options &options) {
  std::vector<std::pair<fs::path, uint64_t>> files;
  const fs::path model = options.text("model_name_or_path");
  const auto add = [&](const char *name) {
    std::error_code error;
    if (const uint64_t bytes = fs::file_size(model / name, error); !error)
      files.emplace_back(model / name, bytes);
  };
  if (trainsModel(module))
    std::ranges::for_each(kModelConfigs, add);
  std::ranges::for_each(kTokenizerFiles, add);
  return files;
}

/// Through links: Hugging Face's cache is made of them.
static Status copyInto(const std::string &folder, const fs::path &source,
                       AtomicFile::Flush flush) {
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(source));
  return replaceWholeFile(folder + "/" + source.filename().string(), text,
                          flush);
}

std::vector<SafetensorsItem> arenaItems(const LoadedModule &module,
                                        qlora_arena_kind kind,
                                        std::span<const uint8_t> arena) {
  const bool isModel = trainsModel(module);
  std::vector<SafetensorsItem> items;
  for (const qlora_parameter &parameter : module.parameters())
    if (module.arenas()[parameter.arena].kind == kind)
      items.push_back(
          {nameInFile(parameter, isModel),
           *fromAbiDtype(static_cast<qlora_dtype>(parameter.dtype)),
           {parameter.shape, parameter.shape + parameter.rank},
           {arena.empty() ? nullptr : arena.data() + parameter.offset,
            parameter.bytes}});
  return items;
}

std::vector<SafetensorsItem> trainedItems(const LoadedModule &module,
                                          std::span<const uint8_t> arena) {
  return arenaItems(module, QLORA_ARENA_TRAINABLE, arena);
}

template <qlora_dtype Type>
static void roundTo(const uint8_t *from, uint8_t *to, int64_t count) {
  convertWeights(QLORA_DTYPE_F32, from, Type, to, count);
}

/// The same as the run leaves it: a model's weights of their own types.
static std::vector<SafetensorsItem>
finalItems(const LoadedModule &module, std::span<const uint8_t> arena) {
  std::vector<SafetensorsItem> items = trainedItems(module, arena);
  if (!trainsModel(module))
    return items;
  const auto parameters = trainedParameters(module);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].dtype =
        *fromAbiDtype(static_cast<qlora_dtype>(parameters[i]->file_dtype));
    items[i].round = items[i].dtype == SafetensorsDtype::kBF16
                         ? roundTo<QLORA_DTYPE_BF16>
                     : items[i].dtype == SafetensorsDtype::kF16
                         ? roundTo<QLORA_DTYPE_F16>
                         : nullptr;
  }
  return items;
}

/// As save_pretrained writes it.
static std::map<std::string, std::string> metadata() {
  return {{"format", "pt"}};
}

static std::string configText(const LoadedModule &module,
                              const Options &options) {
  return adapterConfig(module, options).dump(2) + "\n";
}

Status writeTrainedWeights(const LoadedModule &module,
                           std::span<const uint8_t> trained,
                           const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(AtomicFile file,
                         AtomicFile::create(folder + "/" + trainedFile(module)));
  return writeSafetensors(std::move(file), trainedItems(module, trained),
                          metadata(), AtomicFile::Flush::kNo);
}

Status writeTrainedConfig(const LoadedModule &module, const Options &options,
                          const std::string &folder, AtomicFile::Flush flush) {
  if (!trainsModel(module))
    QLORA_RETURN_IF_ERROR(replaceWholeFile(
        folder + "/" + kAdapterConfig, configText(module, options), flush));
  for (const auto &[file, size] : copiedFiles(module, options))
    QLORA_RETURN_IF_ERROR(copyInto(folder, file, flush));
  return Status::ok();
}

static Status renameInto(const fs::path &to, const fs::path &from) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error)
    return Status::ok();
  return Status::error(StatusCode::kUnavailable, "cannot write '{}': {}",
                       to.string(), error.message());
}

StatusOr<PreparedAdapter> PreparedAdapter::prepare(const LoadedModule &module,
                                                   const Options &options,
                                                   const std::string &folder) {
  std::error_code error;
  const std::string staging = folder + "/" + kStagingFolder;
  fs::remove_all(staging, error); // an earlier run's
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
      const uint64_t bytesOfWeights,
      safetensorsBytes(finalItems(*module, {}), metadata()));
  uint64_t bytes = bytesOfWeights;
  if (!trainsModel(*module))
    bytes += configText(*module, *options).size();
  for (const auto &[file, size] : copiedFiles(*module, *options))
    bytes += size;
  auto made = AtomicFile::create(staging + "/" + trainedFile(*module));
  Status space = made.status();
  if (space.isOk())
    space = checkFreeSpace(staging, bytes);
  if (space.isOk())
    space = made->reserve(bytesOfWeights);
  if (!space.isOk())
    return Status::error(space.code(), "{}; make room there", space.message());
  weights.emplace(std::move(*made));
  return writeTrainedConfig(*module, *options, staging,
                            AtomicFile::Flush::kYes);
}

PreparedAdapter::PreparedAdapter(PreparedAdapter &&other) noexcept
    : module(other.module), options(other.options),
      folder(std::move(other.folder)),
      staging(std::exchange(other.staging, std::string())),
      weights(std::move(other.weights)) {}

PreparedAdapter::~PreparedAdapter() {
  if (staging.empty())
    return;
  std::error_code ignored;
  fs::remove_all(staging, ignored);
  fs::remove(folder, ignored); // where nothing else is in it
}

Status PreparedAdapter::write(std::span<const uint8_t> trained) {
  // Somebody may have removed the folder while the run was on.
  if (!weights->isThere()) {
    staging.clear(); // the other one's from here on
    QLORA_ASSIGN_OR_RETURN(PreparedAdapter again,
                           prepare(*module, *options, folder));
    return again.write(trained);
  }
  QLORA_RETURN_IF_ERROR(writeSafetensors(
      std::move(*weights), finalItems(*module, trained), metadata()));
  std::vector<fs::path> files;
  const Status status = commit(files);
  // There is no other copy of what was trained.
  if (!status.isOk())
    return Status::error(status.code(), "{}; the adapter is in '{}'",
                         status.message(), std::exchange(staging, ""));
  flushFolder(folder);
  return removeOldTokenizer(files);
}

/// All files, or none: what is there by then goes back.
Status PreparedAdapter::commit(std::vector<fs::path> &files) const {
  auto found = listFolder(staging);
  if (!found.isOk())
    return Status::error(found.status().code(), "cannot read '{}': {}", staging,
                         found.status().message());
  files = std::move(*found);
  for (auto file = files.begin(); file != files.end(); ++file) {
    const Status status = renameInto(fs::path(folder) / file->filename(), *file);
    if (status.isOk())
      continue;
    std::error_code ignored;
    while (file != files.begin()) {
      --file;
      fs::rename(fs::path(folder) / file->filename(), *file, ignored);
    }
    return status;
  }
  return Status::ok();
}

/// An earlier adapter's: two tokenizers in one folder would be a third.
Status PreparedAdapter::removeOldTokenizer(
    const std::vector<fs::path> &written) const {
  for (const char *name : kTokenizerFiles) {
    std::error_code error;
    const bool isOurs = std::ranges::any_of(
        written, [&](const fs::path &file) { return file.filename() == name; });
    if (!isOurs)
      fs::remove(fs::path(folder) / name, error);
    if (error)
      return Status::error(StatusCode::kUnavailable,
                           "the adapter is in '{}', but '{}' of an earlier one "
                           "cannot be removed: {}; remove it",
                           folder, name, error.message());
  }
  return Status::ok();
}

} // namespace qlora
