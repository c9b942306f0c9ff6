// SPDX-License-Identifier: MIT

// Shortens references for display.

#include "runtime/Base/HubReference.h"

#include <filesystem>
#include <sstream>

namespace qlora {

std::string dataTitle(const std::string &path) {
  if (!isHubReference(path))
    return std::filesystem::path(path).filename().string();
  const std::string text = path.substr(kHubPrefix.size());
  std::string title = text.substr(0, text.find_first_of("@?"));
  const size_t question = text.find('?');
  std::istringstream query(question == text.npos ? ""
                                                 : text.substr(question + 1));
  for (std::string pair; std::getline(query, pair, '&');)
    title += ", " + pair.substr(pair.find('=') + 1);
  return title;
}

} // namespace qlora
