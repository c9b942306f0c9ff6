// SPDX-License-Identifier: MIT

// What a data set says beside its path is understood or refused.

#include "tools/qlora/PeerData.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/Base/OptionTable.h"
#include "runtime/Base/UserFiles.h"

namespace qlora {

using nlohmann::json;

/// Keys of a data set that say what is seen from the data itself.
static constexpr const char *kSeen = "path data_files type ds_type";

/// A data set of the hub is ORG/NAME, a file has an extension, and a folder
/// is named as one.
static Status addFile(const json &file, json &paths) {
  if (!file.is_string() || file.get_ref<const std::string &>().empty())
    return Status::invalid("expects a path that is text");
  const std::string text = file.get<std::string>();
  if (!std::filesystem::path(text).has_extension() && text.front() != '/' &&
      text.front() != '.' && text.back() != '/')
    return Status::invalid("'{}' is a data set of the hub; download it and "
                           "give the path of its file (./{} is a folder)",
                           text, text);
  paths.push_back(text);
  return Status::ok();
}

StatusOr<json> pathsOfDatasets(const json &list) {
  if (!list.is_array() || list.empty())
    return Status::invalid("expects a list of data sets, each with a path");
  json paths = json::array();
  for (const json &set : list) {
    if (!set.is_object() || !set.contains("path"))
      return Status::invalid("expects a list of data sets, each with a path");
    for (const auto &[key, value] : set.items())
      if (!std::ranges::count(splitWords(kSeen), key) &&
          !(key == "split" && value == "train"))
        return Status::invalid("'{}' of a data set is not supported; leave it "
                               "out (dataset_columns names columns)",
                               key);
    const json files = set.value("data_files", json());
    for (const json &file : files.is_array()   ? files
                            : files.is_null() ? json::array({set["path"]})
                                              : json::array({files}))
      QLORA_RETURN_IF_ERROR(addFile(file, paths));
  }
  return paths;
}

/// LLaMA-Factory's names for columns, and what alpaca and sharegpt rows call
/// them, which needs no words.
static Status checkColumns(const std::string &name, const json &columns) {
  static constexpr std::pair<const char *, const char *> kUsual[] = {
      {"prompt", "instruction"},     {"query", "input"},
      {"response", "output"},        {"history", "history"},
      {"system", "system"},          {"messages", "conversations"},
      {"messages", "messages"},      {"tools", "tools"}};
  for (const auto &[key, column] : columns.items())
    if (std::ranges::none_of(kUsual, [&](const auto &usual) {
          return key == usual.first && column == usual.second;
        }))
      return Status::invalid("the data set '{}' has its {} in the column {}; "
                             "name its file with train_file and its columns "
                             "with dataset_columns",
                             name, key, column.dump());
  return Status::ok();
}

StatusOr<json> pathsOfNames(const std::string &names, const std::string &base,
                            const std::string &folder) {
  namespace fs = std::filesystem;
  const std::string info =
      (fs::path(base) / folder / "dataset_info.json").string();
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(info));
  const json sets = json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::string words = names;
  std::ranges::replace(words, ',', ' ');
  json paths = json::array();
  for (const std::string_view word : splitWords(words)) {
    const std::string name(word);
    const json set =
        sets.is_object() ? sets.value(name, json()) : json();
    if (!set.is_object() || !set.value("file_name", json()).is_string())
      return Status::invalid("'{}' has no data set '{}' with a file_name; name "
                             "one of its data sets, or give train_file",
                             info, name);
    if (set.contains("columns"))
      QLORA_RETURN_IF_ERROR(checkColumns(name, set["columns"]));
    paths.push_back((fs::path(folder) / set["file_name"]).string());
  }
  if (paths.empty())
    return Status::invalid("names no data set of '{}'", info);
  return paths;
}

} // namespace qlora
