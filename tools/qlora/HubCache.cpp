// SPDX-License-Identifier: MIT

// Parses hub names, finds snapshots in the cache, and detects missing files.

#include "tools/qlora/HubCache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionTable.h"
#include "runtime/Weights/ModelFiles.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

static bool isWordLetter(unsigned char c) {
  return std::isalnum(c) || c == '_';
}

/// True for letters, digits, '_', and, except at the ends, '-' and '.'. False
/// for "..", which could lead out of the cache.
static bool isPlain(const std::string &text) {
  return !text.empty() && isWordLetter(text.front()) &&
         isWordLetter(text.back()) && text.find("..") == text.npos &&
         std::ranges::all_of(text, [](unsigned char c) {
           return isWordLetter(c) || c == '-' || c == '.';
         });
}

/// Follows huggingface_hub's validate_repo_id().
static bool isRepositoryId(const std::string &id) {
  constexpr size_t kLongest = 96;
  const size_t slash = id.find('/');
  const std::string name = slash == id.npos ? id : id.substr(slash + 1);
  return isPlain(name) && name.size() <= kLongest && !name.ends_with(".git") &&
         (slash == id.npos || isPlain(id.substr(0, slash))) &&
         id.find("--") == id.npos;
}

/// Accepts plain names separated by slashes, such as refs/pr/1.
static bool isRevision(const std::string &text) {
  const size_t slash = text.find('/');
  return isPlain(text.substr(0, slash)) &&
         (slash == text.npos || isRevision(text.substr(slash + 1)));
}

std::optional<HubName> parseHubName(const std::string &word,
                                    const std::string &revision) {
  const size_t at = word.find('@');
  HubName name{word.substr(0, at), revision.empty() ? "main" : revision};
  if (at != word.npos)
    name.revision = word.substr(at + 1);
  if (!isRepositoryId(name.id) || !isRevision(name.revision))
    return std::nullopt;
  return name;
}

/// Returns Hugging Face's cache folder. Empty if no variable names one.
static fs::path hubCache() {
  const auto variable = [](const char *name) -> fs::path {
    const char *text = std::getenv(name);
    const std::string path = text ? text : "";
    const char *home = std::getenv("HOME"); // replaces "~"
    return path.starts_with("~/") && home ? home + path.substr(1) : path;
  };
  for (const char *name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const fs::path hub = variable(name); !hub.empty())
      return hub;
  if (const fs::path home = variable("HF_HOME"); !home.empty())
    return home / "hub";
  if (const fs::path cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return cache / "huggingface/hub";
  const fs::path home = variable("HOME");
  return home.empty() ? home : home / ".cache/huggingface/hub";
}

static bool isCommit(const std::string &text) {
  return text.size() == 40 && std::ranges::all_of(text, [](unsigned char c) {
           return std::isxdigit(c);
         });
}

/// Returns the cache's folder of a repository, "models--OWNER--NAME".
static fs::path folderOf(const std::string &kind, const std::string &id) {
  std::string folder = kind + "--" + id;
  if (const size_t slash = folder.find('/'); slash != folder.npos)
    folder.replace(slash, 1, "--");
  return hubCache() / folder;
}

std::string hubDataPath(const std::string &id, const std::string &commit,
                        const std::string &file) {
  return (folderOf("datasets", id) / "snapshots" / commit / file).string();
}

/// Returns a snapshot's path, which may not exist. Empty for an unknown commit.
static fs::path snapshotOf(const HubName &name) {
  const fs::path model = folderOf("models", name.id);
  auto commit = readWholeFile(model / "refs" / name.revision);
  std::string hash = commit.isOk() ? *commit : name.revision;
  while (!hash.empty() && std::isspace(static_cast<unsigned char>(hash.back())))
    hash.pop_back();
  return isCommit(hash) ? model / "snapshots" / hash : fs::path();
}

/// Checks that a snapshot is complete. An error names the missing file.
static Status checkSnapshot(const fs::path &folder, const HubName &name) {
  std::error_code ignored;
  if (folder.empty() || !fs::is_directory(folder, ignored))
    return Status::notFound("revision '{}' is missing", name.revision);
  if (!fs::exists(folder / "config.json", ignored))
    return Status::notFound("'{}' has no config.json", folder.string());
  return ModelFiles::open(folder).status();
}

/// Returns whether HF_HUB_OFFLINE is true by huggingface_hub's rules.
static bool isOffline() {
  const char *text = std::getenv("HF_HUB_OFFLINE");
  std::string word = text ? text : "";
  std::ranges::transform(word, word.begin(), ::toupper);
  return word == "1" || word == "ON" || word == "YES" || word == "TRUE";
}

/// Returns the model folder whose name is spelled most like `word`, or empty.
static std::string nearestModelFolder(const fs::path &word) {
  std::map<std::string, std::string> folders; // key: name with '_' for '-'
  std::error_code error, ignored;
  const fs::path parent = word.parent_path();
  for (fs::directory_iterator entry(parent.empty() ? "." : parent, error), end;
       !error && entry != end; entry.increment(error))
    if (fs::exists(entry->path() / "config.json", ignored)) {
      std::string name = entry->path().filename();
      std::string spelling = name;
      std::ranges::replace(spelling, '-', '_');
      folders.emplace(std::move(spelling), std::move(name));
    }
  std::vector<std::string> spellings;
  for (const auto &[spelling, name] : folders)
    spellings.push_back(spelling);
  const auto nearest =
      folders.find(nearestName(word.filename().string(), spellings));
  return nearest == folders.end() ? "" : (parent / nearest->second).string();
}

StatusOr<std::string> hubModelFolder(const HubName &name) {
  const fs::path cache = hubCache();
  if (cache.empty())
    return Status::unavailable(
        "'{}' is not a local folder, and there is no folder for models of the "
        "Hugging Face hub; set HF_HOME to a folder",
        name.id);
  Status status = checkSnapshot(snapshotOf(name), name);
  if (status.isOk())
    return snapshotOf(name).string();
  const std::string nearest = nearestModelFolder(name.id);
  if (isOffline())
    return Status::notFound(
        "'{}' is not a local folder{} and is incomplete in '{}': {}; "
        "HF_HUB_OFFLINE forbids fetching it: unset that, or copy the model "
        "there",
        name.id, nearest.empty() ? "" : " (did you mean '" + nearest + "'?)",
        cache.string(), status.message());
  if (!nearest.empty())
    fmt::print(stderr,
               "qlora: '{}' is not a local folder; did you mean '{}'? Looking "
               "for it on the Hugging Face hub\n",
               name.id, nearest);
  QLORA_RETURN_IF_ERROR(
      runTool({"qlora-data", {"fetch-model", name.id, name.revision}},
              ToolVerbosity::kTerminal));
  status = checkSnapshot(snapshotOf(name), name);
  if (status.isOk())
    return snapshotOf(name).string();
  return Status::error(status.code(),
                       "'{}' was fetched but cannot be trained: {}", name.id,
                       status.message());
}

std::string presentModelFolder(const std::string &word, const std::string &base,
                               const std::string &revision) {
  std::error_code ignored;
  const std::string path = absolutePath(word, base);
  if (fs::exists(path + "/config.json", ignored))
    return path;
  const auto name = parseHubName(word, revision);
  if (!name || fs::exists(path, ignored))
    return "";
  const fs::path snapshot = snapshotOf(*name);
  return checkSnapshot(snapshot, *name).isOk() ? snapshot.string() : "";
}

StatusOr<std::string> modelFolder(const std::string &word) {
  std::error_code ignored;
  const auto name = parseHubName(word);
  if (!name || fs::exists(word, ignored))
    return word;
  return hubModelFolder(*name);
}

} // namespace qlora
