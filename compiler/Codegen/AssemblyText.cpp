// SPDX-License-Identifier: MIT

// Formats rows and strings for the GNU assembler syntax.

#include "compiler/Codegen/AssemblyText.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Base64.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

using namespace qlora;

static std::string escaped(std::string_view text) {
  std::string result;
  for (unsigned char c : text) {
    if (llvm::isPrint(c) && c != '"' && c != '\\')
      result += static_cast<char>(c);
    else
      result += fmt::format("\\{:03o}", c);
  }
  return result;
}

std::string StringTable::label(std::string_view text) {
  auto it = labels.find(text);
  if (it == labels.end()) {
    it = labels.emplace(text, labels.size()).first;
    fmt::format_to(std::back_inserter(lines), ".Ltext{}: .asciz \"{}\"\n",
                   it->second, escaped(text));
  }
  return fmt::format(".Ltext{}", it->second);
}

void WordTable::row(std::initializer_list<uint64_t> words) {
  numbers.insert(numbers.end(), words);
  ++count;
}

void WordTable::row(const std::vector<std::string> &words) {
  fmt::format_to(std::back_inserter(lines), ".quad {}\n",
                 fmt::join(words, ", "));
  ++count;
}

/// Encodes numbers in base 64, because the assembler is slow at decimals: it
/// would take longer to read them than the compiler takes to compute them.
std::string WordTable::str() const {
  std::string text = fmt::format(".balign 16\n{}:\n{}", label, lines);
  if (!numbers.empty())
    text += fmt::format(".base64 \"{}\"\n",
                        llvm::encodeBase64(llvm::StringRef(
                            reinterpret_cast<const char *>(numbers.data()),
                            numbers.size() * sizeof(numbers.front()))));
  return text;
}
