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

Status checkSpecialTokens(std::span<const SpecialToken> tokens,
                          const std::string &path, const std::string &folder) {
  if (tokens.empty())
    return Status::ok();
  const json config = jsonObjectIn(folder + "/tokenizer_config.json");
  const json map = jsonObjectIn(folder + "/special_tokens_map.json");
  std::vector<json> added; // texts of all special tokens
  for (const json &token : jsonObjectIn(folder + "/tokenizer.json")
                               .value("added_tokens", json::array()))
    if (token.value("special", false))
      added.push_back(textOf(token));
  for (const SpecialToken &token : tokens) {
    const json own = textOf(
        config.value(token.name, map.value(token.name, json())));
    const auto isAdded = [&](const json &text) {
      return std::ranges::count(added, text) != 0;
    };
    const bool isSame = token.value.is_array()
                            ? std::ranges::all_of(token.value, isAdded)
                            : own == token.value;
    if (!isSame)
      return Status::invalid(
          "{}:{}: 'special_tokens': would change the tokenizer ({}): write it "
          "into tokenizer_config.json",
          path, token.line, token.name);
  }
  return Status::ok();
}

} // namespace qlora
