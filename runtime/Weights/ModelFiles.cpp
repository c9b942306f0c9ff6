// SPDX-License-Identifier: MIT

// Opens single-file and sharded model folders.

#include "runtime/Weights/ModelFiles.h"

#include <nlohmann/json.hpp>

#include <filesystem>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"

using nlohmann::json;

namespace qlora {

static constexpr const char *kSingleFile = "model.safetensors";
static constexpr const char *kIndexFile = "model.safetensors.index.json";

/// Returns whether the path exists, or an error if the check fails. If a failed
/// check counted as false, the caller could read the index instead of the
/// single file.
static StatusOr<bool> isThere(const std::filesystem::path &path) {
  std::error_code error;
  const bool isFound = std::filesystem::exists(path, error);
  if (!error)
    return isFound;
  return Status::unavailable("cannot read '{}': {}", path.string(),
                             error.message());
}

StatusOr<ModelFiles> ModelFiles::open(const std::string &folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  ModelFiles files;
  files.root = folder;
  const fs::path root(folder);
  QLORA_ASSIGN_OR_RETURN(const bool isFound, isThere(root));
  if (!isFound || !fs::is_directory(root, ignored))
    return Status::notFound("no model folder '{}'", folder);
  QLORA_ASSIGN_OR_RETURN(const bool hasSingle, isThere(root / kSingleFile));
  QLORA_ASSIGN_OR_RETURN(const bool hasIndex, isThere(root / kIndexFile));
  // Like transformers, prefer the single file if both exist.
  if (hasSingle)
    QLORA_RETURN_IF_ERROR(files.openSingle());
  else if (hasIndex)
    QLORA_RETURN_IF_ERROR(files.openIndexed((root / kIndexFile).string()));
  else
    return Status::notFound(
        "'{}' has neither {} nor {}; only safetensors weights are read", folder,
        kSingleFile, kIndexFile);
  QLORA_RETURN_IF_ERROR(files.readQuantization());
  return files;
}

/// Reads config.json. frontend/ reports a missing or damaged file.
Status ModelFiles::readQuantization() {
  const std::string path = root + "/config.json";
  QLORA_ASSIGN_OR_RETURN(const bool isFound, isThere(path));
  if (!isFound)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    return Status::ok();
  constexpr const char *kKey = "quantization_config", *kText = "text_config";
  const bool isInside = config.contains(kText) && config[kText].is_object() &&
                        config[kText].contains(kKey);
  const json &from = isInside ? config[kText] : config;
  if (const auto found = from.find(kKey); found != from.end())
    quantizationText = dumpJson(*found);
  return Status::ok();
}

bool ModelFiles::zeroPointsAreLess() const {
  const json stored = json::parse(quantizationText, nullptr, false);
  if (!stored.is_object())
    return true;
  for (const char *key : {"checkpoint_format", "format"})
    if (const auto found = stored.find(key); found != stored.end())
      return *found != "gptq_v2";
  return true;
}

Status ModelFiles::openSingle() {
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile file,
                         SafetensorsFile::open(root + "/" + kSingleFile));
  for (const SafetensorsTensor &tensor : file.tensors())
    owner.emplace(tensor.name, kSingleFile);
  files.emplace(kSingleFile, std::move(file));
  return Status::ok();
}

static StatusOr<json> readIndex(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object() ||
      !root.contains("weight_map") || !root["weight_map"].is_object())
    return Status::dataLoss("'{}' is not a JSON object with a weight_map",
                            path);
  return root["weight_map"];
}

Status ModelFiles::openIndexed(const std::string &indexPath) {
  QLORA_ASSIGN_OR_RETURN(json map, readIndex(indexPath));
  for (const auto &[name, value] : map.items()) {
    if (!value.is_string())
      return Status::dataLoss("'{}': weight_map of '{}' is not a file name",
                              indexPath, name);
    const std::string shard = value.get<std::string>();
    if (shard.empty() || shard.find('/') != std::string::npos ||
        shard.find("..") != std::string::npos ||
        shard.find('\0') != std::string::npos)
      return Status::dataLoss("'{}': weight_map of '{}' is '{}'; a shard must "
                              "be a plain file name in the model folder",
                              indexPath, name, shard);
    auto file = files.find(shard);
    if (file == files.end()) {
      auto opened = SafetensorsFile::open(root + "/" + shard);
      if (!opened.isOk())
        return opened.status().withContext(
            fmt::format("shard named by '{}'", indexPath));
      file = files.emplace(shard, std::move(opened).value()).first;
    }
    if (!file->second.find(name))
      return Status::dataLoss("'{}' places tensor '{}' in '{}', which lacks it",
                              indexPath, name, shard);
    owner.emplace(name, shard);
  }
  return Status::ok();
}

std::vector<std::string> spellings(std::string_view name) {
  constexpr std::string_view kInside = ".language_model";
  std::vector<std::string> all = {std::string(name)};
  const size_t dot = name.find('.');
  if (dot == name.npos)
    return all;
  const std::string_view first = name.substr(0, dot);
  std::string_view rest = name.substr(dot);
  const bool isInside = rest.starts_with(fmt::format("{}.", kInside));
  if (isInside) {
    rest.remove_prefix(kInside.size());
    all.push_back(fmt::format("{}{}", first, rest));
  }
  all.emplace_back(rest.substr(1));
  all.push_back(fmt::format("language_model.{}{}", first, rest));
  if (!isInside)
    all.push_back(fmt::format("{}{}{}", first, kInside, rest));
  return all;
}

ModelFiles::Owners::const_iterator
ModelFiles::locate(std::string_view name) const {
  for (const std::string &spelling : spellings(name))
    if (const auto found = owner.find(spelling); found != owner.end())
      return found;
  return owner.end();
}

ModelFiles::Entry ModelFiles::find(std::string_view name) const {
  const auto found = locate(name);
  if (found == owner.end())
    return {nullptr, nullptr};
  const SafetensorsFile &file = files.find(found->second)->second;
  return {&file, file.find(found->first)};
}

StatusOr<ModelFiles::Entry> ModelFiles::get(std::string_view name) const {
  const Entry entry = find(name);
  if (entry.tensor)
    return entry;
  if (owner.empty())
    return Status::notFound("model '{}' has no tensor '{}'; it is empty", root,
                            name);
  return Status::notFound(
      "model '{}' has no tensor '{}'; it holds {}, such as '{}'", root, name,
      owner.size(), owner.begin()->first);
}

std::vector<std::string> ModelFiles::tensorNames() const {
  std::vector<std::string> names;
  for (const auto &[name, file] : owner)
    names.push_back(name);
  return names;
}

StatusOr<std::string> ModelFiles::fileOf(std::string_view tensorName) const {
  QLORA_RETURN_IF_ERROR(get(tensorName).status());
  return locate(tensorName)->second;
}

} // namespace qlora
