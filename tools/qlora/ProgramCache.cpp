// SPDX-License-Identifier: MIT

// Entries of the program cache, and the part of a key that identifies the
// model. Train.cpp has the rest of the key.

#include "tools/qlora/ProgramCache.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "frontend/HfConfig.h"
#include "frontend/ModelFolder.h"
#include "frontend/ModelIdentity.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Weights/ModelFiles.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

Status addModel(ContentHash &hash, const std::string &folder,
                const nlohmann::ordered_json &modelKeys) {
  QLORA_RETURN_IF_ERROR(checkModelFolder(folder));
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config,
                         readHfConfig(folder, modelKeys));
  QLORA_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(folder));
  hash.add(dumpJson(describeArithmetic(config)));
  // describeArithmetic() omits settings that affect only training.
  hash.add(fmt::format("{} {} {} {}", config.dropout.embedding,
                       config.dropout.residual, config.dropout.attention,
                       config.paddingToken));
  for (const std::string &name : files.tensorNames()) {
    const SafetensorsTensor &tensor = *files.find(name).tensor;
    hash.add(name);
    hash.add(safetensorsDtypeName(tensor.dtype));
    hash.add(std::span<const int64_t>(tensor.shape));
  }
  return Status::ok();
}

void addInstructions(ContentHash &hash) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("flags") || line.starts_with("Features"))
      return hash.add(line);
}

/// Hashes the files of qlora-import and qloracc. Empty if one is missing.
static std::string compilerHash() {
  ContentHash hash;
  for (const char *tool : {"qlora-import", "qloracc"}) {
    const auto path = findTool(tool);
    if (!path.isOk() || !hash.addFile(path.value()).isOk())
      return "";
  }
  return hash.finish().substr(0, 16);
}

StatusOr<ProgramCache> ProgramCache::open(const std::string &key) {
  const std::string user = userCacheFolder();
  if (user.empty())
    return Status::unavailable(
        "neither XDG_CACHE_HOME nor HOME is set, so there is "
        "no folder for compiled programs; set one");
  ProgramCache cache;
  cache.folder = user + "/programs";
  cache.key = key;
  const std::string compiler = compilerHash();
  cache.hasCompiler = !compiler.empty();
  cache.stem = fmt::format("{}/{}-{}", cache.folder, key, compiler);
  return cache;
}

std::string ProgramCache::find(std::string &note) const {
  std::vector<std::string> candidates = {programPath()};
  if (auto entries = listFolder(folder); !hasCompiler && entries.isOk())
    for (const fs::path &entry : entries.value())
      if (entry.filename().string().starts_with(key + "-") &&
          entry.extension() == ".so")
        candidates.push_back(entry.string());
  for (const std::string &path : candidates) {
    const auto bytes = readWholeFile(path);
    if (!bytes.isOk())
      continue;
    if (isSealed(bytes.value())) {
      std::error_code ignored; // the cache may be read-only
      fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
      return path;
    }
    note = fmt::format("'{}' is damaged and is compiled again", path);
  }
  return "";
}

Status ProgramCache::prepare() const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return Status::unavailable(
        "cannot create the folder '{}' for compiled programs: "
        "{}; set XDG_CACHE_HOME to another folder",
        folder, error.message());
  keepRecentFiles(folder, ".so", kLimit, 0);
  keepRecentFiles(folder, ".mlir", kLimit / 8, 0);
  return Status::ok();
}

} // namespace qlora
