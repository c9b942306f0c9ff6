// SPDX-License-Identifier: MIT

// Table of other tools' keys that need no code: the option of each, and the
// accepted values.

#ifndef QLORA_TOOLS_QLORA_FOREIGNROWS_H
#define QLORA_TOOLS_QLORA_FOREIGNROWS_H

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace qlora {

struct ForeignRow {
  const char *keys; ///< separated by spaces
  /// Option that takes the values; empty: the key is ignored.
  const char *option;
  /// Separated by spaces. "a=b" translates a to b, "a" keeps a, and "*" keeps
  /// every other value. Without "*", other values are refused.
  const char *values;
  const char *words; ///< effect of the key, and the reason or an alternative
};

/// Returns the row of a key, or null if the table lacks the key.
const ForeignRow *findForeignRow(const std::string &key);

/// Returns every key of the table.
std::vector<std::string> foreignRowKeys();

/// Returns a scalar as in the table: "false" for False, "none" for null.
std::string foreignNameOf(const nlohmann::ordered_json &value);

/// Returns whether the word means "off".
bool isOffWord(const std::string &word);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNROWS_H
