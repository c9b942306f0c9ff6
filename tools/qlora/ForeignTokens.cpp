// SPDX-License-Identifier: MIT

// Compares the special tokens of a file with those of the model's tokenizer.

#include "tools/qlora/ForeignConfigKeys.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/Base/JsonText.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Returns a token's text. Files have it as a text or as an object.
static json textOf(const json &token) {
  return token.is_object() ? token.value("content", json()) : token;
}

namespace {
/// The tokens of a model's tokenizer.
class Vocabulary {
public:
  explicit Vocabulary(const std::string &folder)
      : config(jsonObjectIn(folder + "/tokenizer_config.json")),
        map(jsonObjectIn(folder + "/special_tokens_map.json")),
        tokenizer(jsonObjectIn(folder + "/tokenizer.json")) {
    for (const json &token : tokenizer.value("added_tokens", json::array()))
      (token.value("special", false) ? special : others)
          .push_back(textOf(token));
  }

  json named(const std::string &name) const {
    return textOf(config.value(name, map.value(name, json())));
  }
  bool isSpecial(const json &text) const {
    return std::ranges::count(special, text) != 0;
  }
  /// Returns true also if the folder has no tokenizer.json: qlora-data then
  /// refuses an unknown token.
  bool has(const json &text) const {
    static const json::json_pointer kTokens("/model/vocab");
    return tokenizer.empty() || isSpecial(text) ||
           std::ranges::count(others, text) ||
           (tokenizer.contains(kTokens) && tokenizer.at(kTokens).is_object() &&
            tokenizer.at(kTokens).contains(text.get<std::string>()));
  }

private:
  const json config, map, tokenizer;
  std::vector<json> special, others; ///< texts of added tokens
};
} // namespace

/// Returns why a token of the file cannot be used.
static Status checkToken(const SpecialToken &token, const Vocabulary &known) {
  const json own = known.named(token.name);
  if (own == token.value)
    return Status::ok();
  if (token.value.is_array() &&
      std::ranges::all_of(
          token.value, [&](const json &text) { return known.isSpecial(text); }))
    return Status::ok();
  if (!token.value.is_string() || !known.has(token.value))
    return Status::invalid(
        "would add tokens ({}) to the tokenizer, for which "
        "the model has no embeddings: use tokens that it has",
        token.name);
  // --eos-token replaces the end token. Other tokens that the tokenizer lacks
  // have no effect on texts without a template.
  if (token.name == "eos_token" || (own.is_null() && token.isUnused))
    return Status::ok();
  return Status::invalid("would change the tokenizer ({}): write it into "
                         "tokenizer_config.json",
                         token.name);
}

Status checkSpecialTokens(std::span<const SpecialToken> tokens,
                          const std::string &path, const std::string &folder) {
  if (tokens.empty())
    return Status::ok();
  const Vocabulary known(folder);
  for (const SpecialToken &token : tokens)
    QLORA_RETURN_IF_ERROR(
        checkToken(token, known)
            .withContext(
                fmt::format("{}:{}: 'special_tokens'", path, token.line)));
  return Status::ok();
}

} // namespace qlora
