// SPDX-License-Identifier: MIT

// Formats rows and strings for the GNU assembler syntax.

#include "compiler/Codegen/AssemblyText.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Base64.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <cstring>

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

std::string qlora::stringText(std::string_view label, std::string_view text) {
  return fmt::format("{}: .asciz \"{}\"\n", label, escaped(text));
}

std::string qlora::rowText(const void *row, size_t bytes,
                           const AddressLabels &labels) {
  std::vector<std::string> words;
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, static_cast<const char *>(row) + at, sizeof(word));
    auto label = labels.find(at);
    words.push_back(label == labels.end() ? std::to_string(word)
                                          : label->second);
  }
  return fmt::format(".quad {}\n", fmt::join(words, ", "));
}

/// Writes base 64, because the assembler is slow at decimals: it would take
/// longer to read them than the compiler takes to compute them.
std::string qlora::dataText(std::string_view label, const void *rows,
                            size_t bytes) {
  std::string text = fmt::format(".balign 16\n{}:\n", label);
  if (bytes > 0)
    text += fmt::format(".base64 \"{}\"\n",
                        llvm::encodeBase64(llvm::StringRef(
                            static_cast<const char *>(rows), bytes)));
  return text;
}
