// SPDX-License-Identifier: MIT

// Constant tables as assembler text. Numbers are packed into 64-bit
// little-endian words and written in base 64, so that a table of 60,000 rows
// assembles in a fraction of a second.

#ifndef QLORA_COMPILER_CODEGEN_ASSEMBLYTEXT_H
#define QLORA_COMPILER_CODEGEN_ASSEMBLYTEXT_H

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

/// Returns two 32-bit numbers as one 64-bit word, with `low` first in memory.
inline uint64_t wordOf(uint32_t low, uint32_t high) {
  return uint64_t(high) << 32 | low;
}

/// String constants, each written once, in the order of first use.
class StringTable {
public:
  /// Returns the label of a NUL-terminated copy of `text`.
  std::string label(std::string_view text);
  std::string str() const { return lines; }

private:
  std::map<std::string, size_t, std::less<>> labels;
  std::string lines;
};

/// A labelled table of 64-bit words.
class WordTable {
public:
  explicit WordTable(std::string label) : label(std::move(label)) {}

  /// Adds a row: numbers, or assembler expressions with labels. All rows of a
  /// table must be numbers, or all must be expressions.
  void row(std::initializer_list<uint64_t> words);
  void row(const std::vector<std::string> &words);

  uint32_t size() const { return count; }
  const std::string &getLabel() const { return label; }
  std::string str() const;

private:
  std::string label;
  std::vector<uint64_t> numbers;
  std::string lines; ///< rows of expressions, as assembler lines
  uint32_t count = 0;
};

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_ASSEMBLYTEXT_H
