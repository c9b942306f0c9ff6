// SPDX-License-Identifier: MIT

// Conversion of JSON to text. File names may have any bytes, but the library's
// dump() throws if a text is not UTF-8. So all other code must call these
// functions instead (lint-checked).

#ifndef QLORA_RUNTIME_BASE_JSONTEXT_H
#define QLORA_RUNTIME_BASE_JSONTEXT_H

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace qlora {

/// Returns text for people, logs and other programs: bytes that are not UTF-8
/// become U+FFFD. `indent` below 0: one line. Does not throw.
template <typename Json>
std::string dumpJson(const Json &value, int indent = -1, bool isAscii = false) {
  return value.dump(indent, ' ', isAscii, Json::error_handler_t::replace);
}

/// Returns text for parseExact() and readYamlMap(): bytes that are not UTF-8
/// are kept, so that a path still names its file.
template <typename Json> std::string dumpExact(const Json &value);
extern template std::string dumpExact(const nlohmann::json &);
extern template std::string dumpExact(const nlohmann::ordered_json &);

/// Parses the text of dumpExact(); returns a discarded value if it is not JSON.
template <typename Json = nlohmann::json>
Json parseExact(std::string_view text);
extern template nlohmann::json parseExact(std::string_view);
extern template nlohmann::ordered_json parseExact(std::string_view);

/// Returns the object in a JSON file; an empty one if there is none.
nlohmann::ordered_json jsonObjectIn(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_JSONTEXT_H
