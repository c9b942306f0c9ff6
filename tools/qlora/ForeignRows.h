// SPDX-License-Identifier: MIT

// Tables of other tools' keys that need no code: the option of each, and the
// accepted values. ForeignRows.cpp has keys that are translated,
// ForeignIgnored.cpp keys without an effect, ForeignRefused.cpp the others.

#ifndef QLORA_TOOLS_QLORA_FOREIGNROWS_H
#define QLORA_TOOLS_QLORA_FOREIGNROWS_H

#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <vector>

namespace qlora {

struct ForeignRow {
  const char *keys; ///< separated by spaces
  /// Option that takes the values; empty: the key is ignored.
  const char *option;
  /// Separated by spaces. "a=b" translates a to b, "a!" sets nothing, "a" keeps
  /// a, and "*" keeps every other value. Without "*", other values are refused.
  const char *values;
  const char *words; ///< effect of the key, and the reason or an alternative
};

/// Every value.
inline constexpr const char *kAny = "*";
/// Values that mean "off".
inline constexpr const char *kOff = "false none no 0 0.0 [] {}";

using ForeignTable = std::vector<std::span<const ForeignRow>>;

ForeignTable ignoredRows();
ForeignTable refusedRows();

/// Returns the row of a key, or null if no table has it.
const ForeignRow *findForeignRow(const std::string &key);

/// Returns every key of the tables.
std::vector<std::string> foreignRowKeys();

/// Returns a scalar as in the tables: "false" for False, "none" for null.
std::string foreignNameOf(const nlohmann::ordered_json &value);

/// Returns whether the word means "off".
bool isOffWord(const std::string &word);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_FOREIGNROWS_H
