// SPDX-License-Identifier: MIT

// Rewrites the files that name the end token.

#include "runtime/Checkpoint/EndToken.h"

#include <optional>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"

namespace qlora {

using nlohmann::ordered_json;

/// Returns the token's id from a folder's tokenizer.json.
static std::optional<int64_t> idOfToken(const std::string &token,
                                        const std::string &folder) {
  static const ordered_json::json_pointer kTokens("/model/vocab");
  const ordered_json tokenizer = jsonObjectIn(folder + "/tokenizer.json");
  for (const ordered_json &added :
       tokenizer.value("added_tokens", ordered_json::array()))
    if (added.value("content", "") == token)
      return added.at("id").get<int64_t>();
  if (!tokenizer.contains(kTokens) || !tokenizer.at(kTokens).is_object())
    return std::nullopt;
  const ordered_json &tokens = tokenizer.at(kTokens);
  const auto found = tokens.find(token);
  return found == tokens.end() ? std::nullopt
                               : std::optional(found->get<int64_t>());
}

/// Replaces a value in a JSON file, if the file exists and has another one.
static Status replaceValue(const std::string &path, const char *key,
                           const ordered_json &value, AtomicFile::Flush flush) {
  ordered_json object = jsonObjectIn(path);
  const ordered_json own = object.value(key, ordered_json());
  if (object.empty() || own == value ||
      (own.is_object() && own.value("content", ordered_json()) == value))
    return Status::ok();
  object[key] = value;
  return replaceWholeFile(path, dumpJson(object, 2) + "\n", flush);
}

Status writeEndToken(const std::string &token, const std::string &folder,
                     AtomicFile::Flush flush) {
  if (token.empty())
    return Status::ok();
  for (const char *file :
       {"/tokenizer_config.json", "/special_tokens_map.json"})
    QLORA_RETURN_IF_ERROR(
        replaceValue(folder + file, "eos_token", token, flush));
  const std::optional<int64_t> id = idOfToken(token, folder);
  if (!id)
    return Status::ok();
  QLORA_RETURN_IF_ERROR(
      replaceValue(folder + "/config.json", "eos_token_id", *id, flush));
  // Generation still ends at the model's own end tokens.
  const std::string path = folder + "/generation_config.json";
  const ordered_json own =
      jsonObjectIn(path).value("eos_token_id", ordered_json());
  ordered_json ids = ordered_json::array({*id});
  for (const ordered_json &other :
       own.is_array() ? own : ordered_json::array({own}))
    if (!other.is_null() && other != *id)
      ids.push_back(other);
  return replaceValue(path, "eos_token_id", ids, flush);
}

} // namespace qlora
