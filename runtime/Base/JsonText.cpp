// SPDX-License-Identifier: MIT

// Passes bytes that are not UTF-8 through a JSON library that rejects them. In
// the library's values, such a byte B is the private code point U+10FF00 + B.
// If a text has the code points U+10FF80 to U+10FFFF itself, each of their four
// UTF-8 bytes is escaped in this way, so the conversion is reversible.

#include "runtime/Base/JsonText.h"

#include "runtime/Base/UserFiles.h"

namespace qlora {

/// The first two of the four bytes of U+10FF80 to U+10FFFF.
static constexpr std::string_view kPrivate = "\xf4\x8f";

static bool isPrivate(std::string_view text) {
  return text.size() >= 4 && text.starts_with(kPrivate) &&
         (text[2] == '\xbe' || text[2] == '\xbf');
}

/// Returns the bytes of the first character of a text; 0 if it is not UTF-8.
static size_t characterBytes(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(0);
  const size_t count = first < 0x80                    ? 1
                       : first >= 0xc2 && first < 0xe0 ? 2
                       : first >= 0xe0 && first < 0xf0 ? 3
                       : first >= 0xf0 && first < 0xf5 ? 4
                                                       : 0;
  for (size_t i = 1; i < count; ++i)
    if ((byte(i) & 0xc0) != 0x80)
      return 0;
  // Refuse overlong forms, surrogates, and code points above U+10FFFF.
  const unsigned second = byte(1);
  const bool isWrong =
      (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return isWrong ? 0 : count;
}

static std::string withEscapedBytes(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t bytes = characterBytes(text);
    const bool isKept = bytes > 0 && !isPrivate(text);
    const size_t count = isKept ? bytes : 1;
    if (isKept) {
      result += text.substr(0, count);
    } else {
      const auto byte = static_cast<unsigned char>(text[0]);
      result += kPrivate;
      result += static_cast<char>(byte < 0xc0 ? 0xbe : 0xbf);
      result += static_cast<char>(0x80 | (byte & 0x3f));
    }
    text.remove_prefix(count);
  }
  return result;
}

static std::string withRestoredBytes(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const bool isByte = isPrivate(text);
    result += isByte ? static_cast<char>((text[2] == '\xbe' ? 0x80 : 0xc0) |
                                         (text[3] & 0x3f))
                     : text[0];
    text.remove_prefix(isByte ? 4 : 1);
  }
  return result;
}

/// Returns `value` with `change` applied to each text, including keys.
template <typename Json>
static Json withTexts(const Json &value,
                      std::string (*change)(std::string_view)) {
  if (value.is_string())
    return change(value.template get_ref<const std::string &>());
  if (!value.is_structured())
    return value;
  Json copy = value.is_array() ? Json::array() : Json::object();
  for (const auto &[key, element] : value.items())
    if (value.is_array())
      copy.push_back(withTexts(element, change));
    else
      copy[change(key)] = withTexts(element, change);
  return copy;
}

template <typename Json> std::string dumpExact(const Json &value) {
  return withRestoredBytes(dumpJson(withTexts(value, withEscapedBytes)));
}

template <typename Json> Json parseExact(std::string_view text) {
  return withTexts(Json::parse(withEscapedBytes(text), nullptr,
                               /*allow_exceptions=*/false),
                   withRestoredBytes);
}

template std::string dumpExact(const nlohmann::json &);
template std::string dumpExact(const nlohmann::ordered_json &);
template nlohmann::json parseExact(std::string_view);
template nlohmann::ordered_json parseExact(std::string_view);

nlohmann::ordered_json jsonObjectIn(const std::string &path) {
  using Json = nlohmann::ordered_json;
  const auto text = readWholeFile(path);
  Json value = text.isOk() ? Json::parse(text.value(), nullptr, false) : Json();
  return value.is_object() ? value : Json::object();
}

} // namespace qlora
