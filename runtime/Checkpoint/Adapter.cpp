// SPDX-License-Identifier: MIT

// Writes adapter folders.

#include "runtime/Checkpoint/Adapter.h"

#include <algorithm>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/EndToken.h"
#include "runtime/Data/TokenCache.h"
#include "runtime/Module/ParameterCounts.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char *kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer.model",
                                           "tokenizer_config.json",
                                           "chat_template.jinja",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt"};

constexpr const char *kModelWeights = "model.safetensors";
constexpr const char *kAdapterConfig = "adapter_config.json";
/// Files that are copied from the model folder unchanged.
constexpr const char *kModelConfigs[] = {"config.json",
                                         "generation_config.json"};

} // namespace

std::span<const char *const> tokenizerFiles() { return kTokenizerFiles; }

bool holdsAdapter(const fs::path &folder) {
  std::error_code ignored;
  return fs::exists(folder / kAdapterWeights, ignored) ||
         fs::exists(folder / kModelWeights, ignored);
}

const char *trainedFile(const LoadedModule &module) {
  return trainsModel(module) ? kModelWeights : kAdapterWeights;
}

/// Returns the files to copy from the model folder, with their sizes in bytes.
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

/// Copies a file. Follows links, since Hugging Face's cache consists of them.
static Status copyInto(const std::string &folder, const fs::path &source,
                       AtomicFile::Flush flush) {
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(source));
  return replaceWholeFile(folder + "/" + source.filename().string(), text,
                          flush);
}

template <qlora_dtype Type>
static void roundTo(const uint8_t *from, uint8_t *to, int64_t count) {
  convertWeights(QLORA_DTYPE_F32, from, Type, to, count);
}

/// Appends the initial factor `start`: A_0 below A, or -B_0 to the right of B.
static void putBeside(std::span<const float> start,
                      const qlora_parameter &parameter, SafetensorsItem &item) {
  const bool isB = std::string_view(parameter.name).ends_with(".lora_B.weight");
  item.beside = {reinterpret_cast<const uint8_t *>(start.data()),
                 parameter.bytes};
  item.parts = isB ? static_cast<size_t>(parameter.shape[0]) : 1;
  item.shape[isB ? 1 : 0] *= 2;
}

/// Returns the trainable parameters as the final file stores them: a model's
/// weights in the dtypes of its files, and adapters for the original base.
static std::vector<SafetensorsItem> finalItems(const LoadedModule &module,
                                               const Options &options,
                                               const LoraInitFactors &factors) {
  std::map<std::string, const qlora_parameter *> parameters;
  for (const qlora_parameter *parameter : trainedParameters(module))
    parameters.emplace(trainedName(module, *parameter), parameter);
  const bool hasFactors = leavesResidual(options.text("init_lora_weights"));
  std::vector<SafetensorsItem> items =
      ArenaTensors(module, QLORA_ARENA_TRAINABLE, /*ranks=*/1).items();
  for (SafetensorsItem &item : items) {
    const qlora_parameter &parameter = *parameters.at(item.name);
    if (hasFactors && parameter.init == QLORA_INIT_FACTOR)
      putBeside(factors.ofAdapter(parameter), parameter, item);
    if (!trainsModel(module))
      continue;
    item.dtype = *fromAbiDtype(static_cast<qlora_dtype>(parameter.file_dtype));
    item.round =
        item.dtype == SafetensorsDtype::kBF16  ? roundTo<QLORA_DTYPE_BF16>
        : item.dtype == SafetensorsDtype::kF16 ? roundTo<QLORA_DTYPE_F16>
                                               : nullptr;
  }
  sortAsInFile(items);
  return items;
}

ArenaTensors finalTensors(const LoadedModule &module, const Options &options) {
  ArenaTensors tensors(module, QLORA_ARENA_TRAINABLE, /*ranks=*/1);
  tensors.sortAs(finalItems(module, options, {}));
  return tensors;
}

std::map<std::string, std::string> adapterMetadata() {
  return {{"format", "pt"}};
}

static std::string configText(const LoadedModule &module,
                              const Options &options, AdapterForm form) {
  return dumpJson(adapterConfig(module, options, form), 2) + "\n";
}

/// Writes the template of --chat-template as the tokenizer's chat template.
/// Skips qwen3-training, which inference must not use.
static Status writeNamedTemplate(const Options &options,
                                 const std::string &folder,
                                 AtomicFile::Flush flush) {
  fs::path path = options.text("chat_template");
  if (path.empty() || path == "qwen3-training")
    return Status::ok();
  if (path.is_relative()) { // a template's name: a file in qlora-data
    QLORA_ASSIGN_OR_RETURN(const fs::path converter, findConverter());
    std::error_code ignored;
    path = fs::canonical(converter, ignored).parent_path() /
           "qlora_data/chat_templates" / (path.string() + ".jinja");
  }
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  return replaceWholeFile(folder + "/chat_template.jinja", text, flush);
}

Status writeTrainedConfig(const LoadedModule &module, const Options &options,
                          const std::string &folder, AtomicFile::Flush flush,
                          AdapterForm form) {
  if (!trainsModel(module))
    QLORA_RETURN_IF_ERROR(replaceWholeFile(folder + "/" + kAdapterConfig,
                                           configText(module, options, form),
                                           flush));
  for (const auto &[file, size] : copiedFiles(module, options))
    QLORA_RETURN_IF_ERROR(copyInto(folder, file, flush));
  QLORA_RETURN_IF_ERROR(
      writeEndToken(options.text("eos_token"), folder, flush));
  return writeNamedTemplate(options, folder, flush);
}

static Status renameInto(const fs::path &to, const fs::path &from) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error)
    return Status::ok();
  return Status::unavailable("cannot write '{}': {}", to.string(),
                             error.message());
}

StatusOr<PreparedAdapter> PreparedAdapter::prepare(const LoadedModule &module,
                                                   const Options &options,
                                                   const std::string &folder) {
  std::error_code error;
  const std::string staging = folder + "/" + kStagingFolder;
  fs::remove_all(staging, error); // an earlier run's
  fs::create_directories(staging, error);
  if (error)
    return Status::unavailable("cannot write to '{}': {}", folder,
                               error.message());
  PreparedAdapter adapter(module, options, folder, staging);
  QLORA_RETURN_IF_ERROR(adapter.fill());
  return adapter;
}

/// Returns all tensors of the weights file.
std::vector<SafetensorsItem>
PreparedAdapter::items(const LoraInitFactors &factors) const {
  std::vector<SafetensorsItem> all = finalItems(*module, *options, factors);
  untrained.addTo(all);
  return all;
}

Status PreparedAdapter::fill() {
  QLORA_ASSIGN_OR_RETURN(untrained, UntrainedTensors::find(*module, *options));
  QLORA_ASSIGN_OR_RETURN(const uint64_t bytesOfWeights,
                         safetensorsBytes(items({}), adapterMetadata()));
  uint64_t bytes = bytesOfWeights;
  if (!trainsModel(*module))
    bytes += configText(*module, *options, AdapterForm::kPlain).size();
  for (const auto &[file, size] : copiedFiles(*module, *options))
    bytes += size;
  auto made = AtomicFile::create(staging + "/" + trainedFile(*module));
  Status space = made.status();
  if (space.isOk())
    space = checkFreeSpace(staging, bytes);
  if (space.isOk())
    space = made->reserve(bytesOfWeights);
  if (!space.isOk())
    return Status::error(space.code(), "{}. Fix: free space there",
                         space.message());
  weights.emplace(std::move(*made));
  return writeTrainedConfig(*module, *options, staging,
                            AtomicFile::Flush::kYes, AdapterForm::kPlain);
}

PreparedAdapter::PreparedAdapter(PreparedAdapter &&other) noexcept
    : module(other.module), options(other.options),
      folder(std::move(other.folder)),
      staging(std::exchange(other.staging, std::string())),
      untrained(std::move(other.untrained)), weights(std::move(other.weights)) {
}

PreparedAdapter::~PreparedAdapter() {
  if (staging.empty())
    return;
  std::error_code ignored;
  fs::remove_all(staging, ignored);
  fs::remove(folder, ignored); // fails if not empty
}

Status PreparedAdapter::write(const NextBytes &trained,
                              const LoraInitFactors &factors) {
  // The folder may have been removed during the run.
  if (!weights->isThere()) {
    staging.clear(); // `again` owns the folder now
    QLORA_ASSIGN_OR_RETURN(PreparedAdapter again,
                           prepare(*module, *options, folder));
    return again.write(trained, factors);
  }
  QLORA_RETURN_IF_ERROR(
      writeSafetensors(std::move(*weights), items(factors), adapterMetadata(),
                       untrained.joined(items(factors), trained)));
  std::vector<fs::path> files;
  const Status status = commit(files);
  // The staging folder has the only copy of the trained values, so it stays.
  if (!status.isOk())
    return Status::error(status.code(), "{}; the adapter is in '{}'",
                         status.message(), std::exchange(staging, ""));
  flushFolder(folder);
  return removeOldTokenizer(files);
}

/// Moves all files or none: on an error, files already moved are moved back.
Status PreparedAdapter::commit(std::vector<fs::path> &files) const {
  auto found = listFolder(staging);
  if (!found.isOk())
    return Status::error(found.status().code(), "cannot read '{}': {}", staging,
                         found.status().message());
  files = std::move(*found);
  for (auto file = files.begin(); file != files.end(); ++file) {
    const Status status =
        renameInto(fs::path(folder) / file->filename(), *file);
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

/// Removes an earlier adapter's tokenizer files: two tokenizers must not mix.
Status PreparedAdapter::removeOldTokenizer(
    const std::vector<fs::path> &written) const {
  for (const char *name : kTokenizerFiles) {
    std::error_code error;
    const bool isOurs = std::ranges::any_of(
        written, [&](const fs::path &file) { return file.filename() == name; });
    if (!isOurs)
      fs::remove(fs::path(folder) / name, error);
    if (error)
      return Status::unavailable(
          "the adapter is in '{}', but '{}' of an earlier adapter cannot be "
          "removed: {}. Fix: remove it",
          folder, name, error.message());
  }
  return Status::ok();
}

} // namespace qlora
