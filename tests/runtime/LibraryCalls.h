// SPDX-License-Identifier: MIT

// Names of functions of NVIDIA's libraries, for sweeps in which they fail.

#ifndef QLORA_TESTS_RUNTIME_LIBRARYCALLS_H
#define QLORA_TESTS_RUNTIME_LIBRARYCALLS_H

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace qlora {

/// Returns whether a function only frees a resource. Its failure is ignored,
/// because the cause was reported before.
inline bool onlyFrees(std::string_view symbol) {
  constexpr std::array kParts = {"Destroy", "Free", "Unload", "Release"};
  return std::ranges::any_of(kParts, [&](const char *part) {
    return symbol.find(part) != std::string_view::npos;
  });
}

/// Returns a function's name as in messages, without its version suffix.
inline std::string nameInMessages(std::string_view symbol) {
  return std::string(
      symbol.substr(0, std::min(symbol.find("_v"), symbol.find("WithFlags"))));
}

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_LIBRARYCALLS_H
