// SPDX-License-Identifier: MIT

// Replaces the placeholders of a page.

#include "runtime/Base/FillPage.h"

namespace qlora {

/// Escapes `<`, so that the JSON is valid inside any HTML element. It occurs
/// only in JSON strings, which may contain escapes.
static std::string embeddable(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char character : json)
    if (character == '<')
      text += "\\u003c";
    else
      text += character;
  return text;
}

std::string fillPage(std::string page, std::string_view json,
                     std::string_view script) {
  constexpr std::string_view kScript = "{{script}}", kData = "{{data}}";
  // The data comes last, since a name in it may look like a placeholder.
  page.replace(page.find(kScript), kScript.size(), script);
  return page.replace(page.find(kData), kData.size(), embeddable(json));
}

} // namespace qlora
