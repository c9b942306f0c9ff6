// SPDX-License-Identifier: MIT

// Reads the keys of axolotl's data sets. Refuses keys that qlora has no
// equivalent for.

#include "tools/qlora/ForeignData.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionTable.h"
#include "tools/qlora/ForeignRows.h"
#include "tools/qlora/HubCache.h"
#include "tools/qlora/HubData.h"

namespace qlora {

using json = nlohmann::ordered_json;

static Status addFile(const json &file, json &paths) {
  if (!file.is_string() || file.get_ref<const std::string &>().empty())
    return Status::invalid("expects a path as a string");
  paths.push_back(file);
  return Status::ok();
}

/// Returns the texts of a text or a list.
static std::vector<std::string> textsOf(const json &value) {
  std::vector<std::string> texts;
  for (const json &item : value.is_array()  ? value
                          : value.is_null() ? json::array()
                                            : json::array({value}))
    texts.push_back(foreignNameOf(item));
  return texts;
}

/// Whether a data set of axolotl is on the hub: it has no path here, and its
/// `path` has neither a file's ending nor the form of a folder ("./data").
static bool isOnHub(const json &set, const std::string &base) {
  const std::string path = foreignNameOf(set["path"]);
  const bool hasFiles = set.contains("data_files");
  std::error_code ignored;
  return parseHubName(path) &&
         !std::filesystem::exists(absolutePath(path, base), ignored) &&
         (isHubDataName(path, base) ||
          (!hasFiles && !std::filesystem::path(path).has_extension()));
}

/// Adds each subset (`name`) of a data set on the hub. Files of `data_files`
/// are its split train.
static Status addHubSet(const json &set, const std::string &split,
                        json &paths) {
  const auto revisions = textsOf(set.value("revision", json()));
  const HubDataKeys keys{.revision =
                             revisions.empty() ? "" : revisions.front()};
  QLORA_ASSIGN_OR_RETURN(HubDataset data,
                         keys.dataset(foreignNameOf(set["path"]), false));
  const auto files = textsOf(set.value("data_files", json()));
  data.files = fmt::to_string(fmt::join(files, ","));
  const auto splits = textsOf(set.value("split", json()));
  data.split = !splits.empty() ? splits.front()
               : files.empty() ? split
                               : "train";
  auto subsets = textsOf(set.value("name", json()));
  if (subsets.empty())
    subsets.emplace_back();
  for (const std::string &subset : subsets) {
    data.config = subset;
    paths.push_back(data.reference());
  }
  return Status::ok();
}

Status ForeignData::add(const ForeignData &other) {
  if (!paths.empty() && dropsSystem != other.dropsSystem)
    return Status::invalid("has data sets with and without "
                           "drop_system_message: use the same for all");
  dropsSystem = other.dropsSystem;
  for (const json &path : other.paths)
    paths.push_back(path);
  formats.insert(other.formats.begin(), other.formats.end());
  hasPieces |= other.hasPieces;
  for (const auto &[name, column] : other.columns)
    if (const auto [mine, isNew] = columns.emplace(name, column);
        !isNew && mine->second != column)
      return Status::invalid(
          "has data sets with different columns for '{}' ('{}' and '{}'); use "
          "the same column names, or one data set",
          name, mine->second, column);
  return Status::ok();
}

namespace {
/// Key of an axolotl data set, and its values that match qlora's behaviour.
struct SetKey {
  const char *key, *values; ///< "*": any
};
} // namespace

static constexpr SetKey kSetKeys[] = {
    {"path", "*"},
    {"data_files", "*"},
    {"ds_type", "*"},
    {"type", "*"},           // addType()
    {"field", "*"},          // addType()
    {"field_messages", "*"}, // addMessages()
    {"trust_remote_code", "*"},
    {"split", "train"}, // addHubSet()
    {"message_field_role", "role from"},
    {"message_field_content", "content value"},
    {"train_on_eos", "turn"},
    {"train_on_eot", "turn"},
    {"drop_system_message", "false true"},
    {"field_thinking", "reasoning_content thinking reasoning"},
    {"template_thinking_key", "reasoning_content thinking reasoning"},
    {"roles", R"({"assistant":["assistant"],"system":["system"],)"
              R"("user":["user"]} )"
              R"({"assistant":["assistant"],"system":["system"],)"
              R"("tool":["tool"],"user":["user"]})"},
    {"split_thinking", "false"},
    {"chat_template", "tokenizer_default"},
    {"field_tools", "tools"},
    {"field_chosen", "chosen"},
    {"field_rejected", "rejected"},
    {"roles_to_train", R"(["assistant"] ["gpt"] ["assistant","gpt"] )"
                       R"(["gpt","assistant"])"},
    {"message_property_mappings",
     R"({"content":"content","role":"role"} {"content":"value","role":"from"})"},
};

/// Returns whether addHubSet() reads the key.
static bool isHubKey(std::string_view key) {
  return key == "name" || key == "split" || key == "revision";
}

static Status checkSetKey(const std::string &key, const json &value) {
  const auto *row = std::ranges::find(kSetKeys, key, [](const SetKey &row) {
    return std::string_view(row.key);
  });
  if (value.is_null())
    return Status::ok();
  if (row == std::end(kSetKeys))
    return Status::invalid("'{}' of a data set is not supported; remove it, "
                           "and name columns with dataset_columns",
                           key);
  // The keys of an object may be in any order; nlohmann::json sorts them.
  const std::string word = value.is_object() ? dumpJson(nlohmann::json(value))
                                             : foreignNameOf(value);
  if (std::string_view(row->values) == "*" ||
      std::ranges::count(splitWords(row->values), word))
    return Status::ok();
  return Status::invalid(
      "'{}: {}' of a data set is not supported; choose from: {}", key, word,
      row->values);
}

/// Maps the column with messages to `conversations` if its messages have
/// ShareGPT's keys ("from") or the column is not called `messages`.
static void addMessages(const json &set, ForeignData &data) {
  const std::string field = foreignNameOf(set.value("field_messages", json()));
  const json names = set.value("message_property_mappings", json());
  const bool hasFrom =
      foreignNameOf(set.value("message_field_role", json())) == "from" ||
      (names.is_object() && names.value("role", "") == "from");
  const std::string key = field == "none" ? "messages" : field;
  if (key != "conversations" && (key != "messages" || hasFrom))
    data.columns["conversations"] = key;
}

/// Returns the row format of a `type` whose prompt qlora-data writes, which has
/// dashes for ":" and ".". Empty: none.
static std::string styleOf(std::string type, std::string_view rl) {
  const char *known = rl == "none"
                          ? "alpaca:chat alpaca:chatml alpaca:phi jeopardy"
                      : rl == "dpo" || rl == "kto" ? "chatml.ultra llama3.ultra"
                                                   : "";
  if (!std::ranges::count(splitWords(known), type))
    return "";
  std::ranges::replace(type, ':', '-');
  std::ranges::replace(type, '.', '-');
  return type;
}

/// Translates `type`, which names one of axolotl's prompt_strategies.
static Status addType(const json &set, const std::string &rl,
                      ForeignData &data) {
  const json value = set.value("type", json());
  if (value.is_null())
    return Status::ok();
  if (!value.is_string())
    return Status::invalid("'type' of a data set defines its own prompt ({}), "
                           "which is not supported; write rows of 'prompt' and "
                           "'completion' with that text, and type: null",
                           value.is_object() && value.contains("format")
                               ? "'format'"
                               : dumpJson(value));
  const std::string type = foreignNameOf(value);
  const std::string field = foreignNameOf(set.value("field", json()));
  if (field != "none" && type != "completion")
    return Status::invalid(
        "'field' of a data set needs type: completion; remove it");
  const bool isChat =
      type == "chat_template" ||
      (rl == "none" ? type == "sharegpt" : type == "chat_template.default") ||
      (rl == "orpo" && type == "chat_template.argilla");
  if (isChat) {
    data.formats.insert("chat");
    addMessages(set, data);
  } else if (type == "alpaca" && rl == "none") {
    data.formats.insert("alpaca");
    data.columns = {{"history", ""}, {"system", ""}};
  } else if (type == "completion" && rl == "none") {
    data.formats.insert("text");
    data.hasPieces = true;
    if (field != "none" && field != "text")
      data.columns["text"] = field;
  } else if (const std::string style = styleOf(type, rl); !style.empty()) {
    data.formats.insert(style);
  } else {
    return Status::invalid(
        "'type: {}' of a data set is not known; choose from: {}, or write rows "
        "of 'prompt' and 'completion', and type: null",
        type,
        rl == "none" ? "alpaca, alpaca:chat, alpaca:chatml, alpaca:phi, "
                       "chat_template, completion, jeopardy, sharegpt"
                     : "chat_template, chat_template.default, chatml.ultra, "
                       "llama3.ultra");
  }
  return Status::ok();
}

StatusOr<ForeignData> dataOfDatasets(const json &list, const std::string &base,
                                     const std::string &rl, bool isTest) {
  if (!list.is_array() || list.empty())
    return Status::invalid("expects a list of data sets, each with a path");
  ForeignData all;
  for (const json &set : list) {
    if (!set.is_object() || !set.contains("path"))
      return Status::invalid("expects a list of data sets, each with a path");
    const bool isOfHub = isOnHub(set, base);
    for (const auto &[key, value] : set.items())
      if (!isOfHub || !isHubKey(key))
        QLORA_RETURN_IF_ERROR(checkSetKey(key, value));
    ForeignData data;
    if (isOfHub)
      QLORA_RETURN_IF_ERROR(
          addHubSet(set, isTest ? "test" : "train", data.paths));
    const json files =
        isOfHub ? json::array() : set.value("data_files", json());
    for (const json &file : files.is_array()  ? files
                            : files.is_null() ? json::array({set["path"]})
                                              : json::array({files}))
      QLORA_RETURN_IF_ERROR(addFile(file, data.paths));
    data.dropsSystem =
        foreignNameOf(set.value("drop_system_message", json())) == "true";
    QLORA_RETURN_IF_ERROR(addType(set, rl, data));
    QLORA_RETURN_IF_ERROR(all.add(data));
  }
  if (all.formats.contains("alpaca") && all.formats.contains("chat"))
    return Status::invalid(
        "has data sets of type alpaca, which ignores 'system' columns, and of "
        "chat_template, which reads them; use one type, or one data set");
  return all;
}

} // namespace qlora
