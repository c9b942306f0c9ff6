// SPDX-License-Identifier: MIT

#include "frontend/ModelFolder.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "runtime/Base/UserFiles.h"

namespace fs = std::filesystem;

namespace qlora {

/// True for OWNER/MODEL in characters that the hub allows, such as
/// "Qwen/Qwen3-0.6B".
static bool looksLikeHubName(const std::string &text) {
  const size_t slash = text.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == text.size() ||
      text.front() == '.' || text.find('/', slash + 1) != std::string::npos)
    return false;
  return std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) || c == '/' || c == '-' || c == '_' || c == '.';
  });
}

static Status missingFolder(const std::string &folder) {
  if (!looksLikeHubName(folder))
    return Status::notFound("no model folder '{}'", folder);
  const std::string name = folder.substr(folder.find('/') + 1);
  return Status::notFound(
      "no model folder '{}'; if it is a model of the Hugging "
      "Face hub, get it first: hf download {} --local-dir {}",
      folder, folder, name);
}

static Status adapterInsteadOfModel(const fs::path &folder) {
  std::ifstream stream(folder / "adapter_config.json", std::ios::binary);
  const auto config = nlohmann::json::parse(stream, nullptr,
                                            /*allow_exceptions=*/false);
  std::string base;
  if (config.is_object() && config.contains("base_model_name_or_path") &&
      config["base_model_name_or_path"].is_string())
    base = fmt::format(
        ", '{}'", config["base_model_name_or_path"].get<std::string>());
  return Status::invalid("'{}' holds an adapter, not a model; give its base "
                         "model{}, and the adapter with "
                         "--adapter-name-or-path {}",
                         folder.string(), base, folder.string());
}

static Status fileInsteadOfFolder(const fs::path &path) {
  if (path.extension() == ".gguf")
    return Status::invalid("'{}' is a GGUF file: llama.cpp runs it. Give the "
                           "model's Hugging Face folder here (config.json and "
                           "safetensors)",
                           path.string());
  const fs::path folder =
      path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code ignored;
  if (fs::exists(folder / "adapter_config.json", ignored))
    return adapterInsteadOfModel(folder);
  if (path.extension() == ".safetensors" || path.extension() == ".json")
    return Status::invalid("'{}' is a file; give the folder that it is in: {}",
                           path.string(), folder.string());
  return Status::invalid("'{}' is a file; expected a Hugging Face model folder",
                         path.string());
}

/// Returns the first file name of listFolder() with this start and ending, or
/// an empty text if there is none.
static std::string findName(const fs::path &folder, std::string_view start,
                            std::string_view ending) {
  const auto files = listFolder(folder.string());
  if (!files.isOk())
    return ""; // reading the model reports the error
  for (const fs::path &file : files.value())
    if (std::string name = file.filename().string();
        name.starts_with(start) && name.ends_with(ending))
      return name;
  return "";
}

static Status folderWithoutConfig(const fs::path &folder) {
  std::error_code ignored;
  if (fs::is_empty(folder, ignored))
    return Status::invalid("'{}' is empty; expected a Hugging Face model "
                           "folder",
                           folder.string());
  if (fs::exists(folder / "adapter_config.json", ignored))
    return adapterInsteadOfModel(folder);
  const fs::path snapshots = folder / "snapshots";
  if (fs::is_directory(snapshots, ignored))
    return Status::invalid("'{}' is a folder of the Hugging Face cache; give "
                           "the snapshot in it: {}",
                           folder.string(),
                           (snapshots / findName(snapshots, "", "")).string());
  if (const std::string name = findName(folder, "", ".gguf"); !name.empty())
    return fileInsteadOfFolder(folder / name);
  return Status::ok(); // reading the model reports the missing config.json
}

/// Refuses a Git LFS pointer. `git clone` writes this small file instead of a
/// large one if Git LFS is not installed.
static Status checkIsNotPointer(const fs::path &file) {
  constexpr std::string_view kPointer = "version https://git-lfs";
  std::string start(kPointer.size(), '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(start.data(), static_cast<std::streamsize>(start.size()));
  if (!stream || start != kPointer)
    return Status::ok();
  return Status::invalid("'{}' is a Git LFS pointer, not the weights; get "
                         "them with 'git lfs pull' in its folder, or with hf "
                         "download",
                         file.string());
}

static Status checkWeightFormat(const fs::path &folder) {
  if (const std::string name = findName(folder, "", ".safetensors");
      !name.empty())
    return checkIsNotPointer(folder / name);
  for (const auto &[start, ending] :
       {std::pair("pytorch_model", ".bin"), std::pair("consolidated", ".pth")})
    if (const std::string name = findName(folder, start, ending); !name.empty())
      return Status::invalid("'{0}' has its weights in {1} and none in "
                             "safetensors; convert them with transformers: "
                             "AutoModelForCausalLM.from_pretrained(\"{0}\", "
                             "dtype=\"auto\").save_pretrained(\"NEW\")",
                             folder.string(), name);
  return Status::ok();
}

Status checkModelFolder(const std::string &folder) {
  std::error_code ignored;
  const fs::path path(folder);
  if (!fs::exists(path, ignored))
    return missingFolder(folder);
  if (!fs::is_directory(path, ignored))
    return fileInsteadOfFolder(path);
  if (!fs::exists(path / "config.json", ignored))
    return folderWithoutConfig(path);
  return checkWeightFormat(path);
}

} // namespace qlora
