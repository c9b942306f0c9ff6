// SPDX-License-Identifier: MIT

// Reads LLaMA-Factory's dataset_info.json. Refuses keys that qlora has no
// equivalent for.

#include "tools/qlora/ForeignData.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionTable.h"
#include "tools/qlora/ForeignRows.h"
#include "tools/qlora/HubCache.h"
#include "tools/qlora/HubData.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// LLaMA-Factory's dataset_dir for data sets that are named as on the hub.
static constexpr std::string_view kOnline = "ONLINE";
/// The same for a data set of the hub that has dataset_info.json and its files.
static constexpr std::string_view kRemote = "REMOTE:";

/// Maps LLaMA-Factory's columns to qlora's, for instruction rows and for
/// conversations. Optional columns are read only if `columns` names them.
static Status addColumns(const json &columns, bool isAlpaca,
                         ForeignData &data) {
  static const std::map<std::string, std::string> kAlpaca = {
      {"prompt", "instruction"},
      {"query", "input"},
      {"response", "output"},
      {"history", "history"},
      {"system", "system"}};
  static const std::map<std::string, std::string> kTalk = {
      {"messages", "conversations"}, {"system", "system"}, {"tools", "tools"}};
  static const std::map<std::string, std::string> kPreferences = {
      {"chosen", "chosen"}, {"rejected", "rejected"}, {"kto_tag", "label"}};
  const auto &names = isAlpaca ? kAlpaca : kTalk;
  const bool isNamed = !columns.is_null();
  for (const auto &[key, name] : names) {
    const bool isOptional =
        key == "history" || key == "system" || key == "tools";
    if (isOptional || (key == "query" && isNamed))
      data.columns[name] = "";
    else if (!isNamed)
      data.columns[name] = name;
  }
  for (const auto &[key, value] : columns.items()) {
    const auto own = names.find(key), other = kPreferences.find(key);
    if (value.is_null())
      continue;
    if (!value.is_string() ||
        (own == names.end() && other == kPreferences.end()))
      return Status::invalid(
          "'columns' has the unsupported key '{}'; remove it", key);
    const std::string column = value.get<std::string>();
    const std::string name = own != names.end() ? own->second : other->second;
    const bool isUsual = (key == "messages" && column == "messages") ||
                         (key == "kto_tag" && column == "kto_tag");
    data.columns[name] = isUsual ? name : column;
  }
  const bool learns =
      !isNamed || columns.contains("response") || columns.contains("chosen");
  if (isAlpaca && !(learns && (!isNamed || columns.contains("prompt"))))
    return Status::invalid(
        "has no '{}' in its 'columns'; add it, as LLaMA-Factory needs it to {}",
        learns ? "prompt" : "response", learns ? "answer" : "learn");
  return Status::ok();
}

/// Adds the column of pretraining's texts, which LLaMA-Factory calls prompts.
static Status addText(const json &columns, bool isAlpaca, ForeignData &data) {
  if (!isAlpaca)
    return Status::invalid("has conversations, but stage: pt needs texts: "
                           "write rows of 'text'");
  const json query =
      columns.is_null() ? json("input") : columns.value("query", json());
  if (!query.is_null())
    return Status::invalid("adds a column of queries ('{}') to the texts, "
                           "which is not supported: write 'columns' with only "
                           "'prompt'",
                           foreignNameOf(query));
  const std::string column =
      foreignNameOf(columns.value("prompt", json("instruction")));
  data.formats.insert("text");
  data.columns["text"] = column;
  return Status::ok();
}

/// Refuses keys and roles of messages that qlora does not read.
static Status checkTags(const json &tags) {
  static const std::map<std::string, const char *> kTags = {
      {"role_tag", "from role"},
      {"content_tag", "value content"},
      {"user_tag", "human user"},
      {"assistant_tag", "gpt assistant"},
      {"observation_tag", "observation tool"},
      {"function_tag", "function_call"},
      {"system_tag", "system"}};
  for (const auto &[key, value] : tags.items()) {
    const auto row = kTags.find(key);
    const std::string word = foreignNameOf(value);
    if (row == kTags.end() ||
        (word != "none" && !std::ranges::count(splitWords(row->second), word)))
      return Status::invalid("has '{}: {}', which is not supported: write the "
                             "messages with 'role' and 'content'",
                             key, word);
  }
  return Status::ok();
}

/// Adds one entry of dataset_info.json, except its file name.
static Status addEntry(const json &set, const std::string &rl,
                       ForeignData &data) {
  static constexpr const char *kHubs =
      "ms_hub_url om_hub_url script_url cloud_file_name";
  const bool isOfHub = set.contains("hf_hub_url");
  for (const std::string_view hub : splitWords(kHubs))
    if (set.contains(hub) && !isOfHub)
      return Status::invalid("has '{}', which is not supported: download the "
                             "data, and keep only 'file_name'",
                             hub);
  if (set.contains("num_samples") && !set["num_samples"].is_null())
    return Status::invalid(
        "has 'num_samples', with which LLaMA-Factory draws "
        "rows at random: remove it, or write max_samples for "
        "the first rows");
  static constexpr const char *kKnown =
      "file_name file_sha1 formatting ranking columns tags";
  static constexpr const char *kOfHub =
      "hf_hub_url ms_hub_url om_hub_url script_url cloud_file_name subset "
      "split "
      "num_samples";
  for (const auto &[key, value] : set.items())
    if (!std::ranges::count(splitWords(kKnown), key) && !value.is_null() &&
        !(key == "split" && value == "train") &&
        !(isOfHub && std::ranges::count(splitWords(kOfHub), key)))
      return Status::invalid("has '{}', which is not supported: remove it",
                             key);
  const std::string formatting =
      set.contains("formatting") ? foreignNameOf(set["formatting"]) : "alpaca";
  const bool isAlpaca = formatting == "alpaca";
  if (!isAlpaca && formatting != "sharegpt" && formatting != "openai")
    return Status::invalid("has 'formatting: {}': write alpaca, sharegpt or "
                           "openai",
                           formatting);
  const bool ranks = foreignNameOf(set.value("ranking", json(false))) == "true";
  const bool wantsPairs = rl == "dpo" || rl == "cpo" || rl == "orpo";
  if (ranks && !wantsPairs)
    return Status::invalid("has pairs ('ranking'), which need stage: dpo");
  if (wantsPairs && !ranks)
    return Status::invalid(
        "has no pairs ('ranking: true'), which stage: dpo needs");
  if (rl == "pt")
    return addText(set.value("columns", json()), isAlpaca, data);
  data.formats.insert(isAlpaca ? "turns" : "chat");
  QLORA_RETURN_IF_ERROR(checkTags(set.value("tags", json::object())));
  return addColumns(set.value("columns", json()), isAlpaca, data);
}

/// Returns the path of an entry of dataset_info.json, or its data set on the
/// hub.
static StatusOr<std::string> pathOfEntry(const json &set,
                                         const std::string &folder) {
  if (set.contains("hf_hub_url")) {
    const auto textOf = [&](const char *key) {
      const json value = set.value(key, json());
      return value.is_null() ? "" : foreignNameOf(value);
    };
    HubDataKeys keys;
    keys.config = textOf("subset");
    keys.trainSplit = textOf("split");
    QLORA_ASSIGN_OR_RETURN(
        const HubDataset data,
        keys.dataset(foreignNameOf(set["hf_hub_url"]), false));
    return data.reference();
  }
  if (!set.value("file_name", json()).is_string())
    return Status::invalid("has no 'file_name'");
  if (folder.starts_with(kRemote))
    return HubDataset{.name = folder.substr(kRemote.size()),
                      .files = set["file_name"]}
        .reference();
  return (std::filesystem::path(folder) / set["file_name"]).string();
}

/// Returns the content of dataset_info.json, empty for the folder ONLINE.
static StatusOr<json> readSets(const std::string &info,
                               const std::string &folder) {
  if (folder == kOnline)
    return json::object();
  std::string path = info;
  if (folder.starts_with(kRemote)) {
    const std::string name = folder.substr(kRemote.size());
    if (!parseHubName(name))
      return Status::invalid("'{}' is no name of a data set on the Hugging "
                             "Face hub; write OWNER/NAME",
                             name);
    QLORA_ASSIGN_OR_RETURN(
        path, findHubFile({.name = name, .files = "dataset_info.json"}));
  }
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

StatusOr<ForeignData> dataOfNames(const std::string &names,
                                  const std::string &base,
                                  const std::string &folder,
                                  const std::string &rl) {
  namespace fs = std::filesystem;
  const std::string info =
      (fs::path(base) / folder / "dataset_info.json").string();
  QLORA_ASSIGN_OR_RETURN(const json sets, readSets(info, folder));
  std::string words = names;
  std::ranges::replace(words, ',', ' ');
  ForeignData all;
  for (const std::string_view word : splitWords(words)) {
    const std::string name(word);
    const json set = folder == kOnline  ? json{{"hf_hub_url", name}}
                     : sets.is_object() ? sets.value(name, json())
                                        : json();
    if (!set.is_object())
      return Status::invalid("'{}' has no data set '{}'; name one of its data "
                             "sets, or add train_file",
                             info, name);
    ForeignData data;
    Status status = addEntry(set, rl, data);
    auto path = pathOfEntry(set, folder);
    if (status.isOk())
      status = path.status();
    if (!status.isOk())
      return status.withContext(
          fmt::format("the data set '{}' of '{}'", name, info));
    data.paths.push_back(*path);
    QLORA_RETURN_IF_ERROR(all.add(data));
  }
  if (all.paths.empty())
    return Status::invalid("does not name a data set in '{}'", info);
  return all;
}

} // namespace qlora
