// SPDX-License-Identifier: MIT

// Constant tables as assembler text. A table without addresses is written in
// base 64, so that 60,000 rows assemble in a fraction of a second.

#ifndef QLORA_COMPILER_CODEGEN_ASSEMBLYTEXT_H
#define QLORA_COMPILER_CODEGEN_ASSEMBLYTEXT_H

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

/// Labels of addresses in a row, by the offset of their 8 bytes.
using AddressLabels = std::map<size_t, std::string>;

/// Returns a NUL-terminated string constant. `text` may contain NULs.
std::string stringText(std::string_view label, std::string_view text);

/// Returns a row of `bytes` bytes, a multiple of 8, with labels as addresses.
std::string rowText(const void *row, size_t bytes, const AddressLabels &labels);

/// Returns a table without addresses, of a multiple of 8 bytes.
std::string dataText(std::string_view label, const void *rows, size_t bytes);

template <typename Row>
std::string dataText(std::string_view label, const std::vector<Row> &rows) {
  return dataText(label, rows.data(), rows.size() * sizeof(Row));
}

/// Returns a table whose rows contain addresses. `labelsOf` returns the labels
/// of a row.
template <typename Row, typename LabelsOf>
std::string addressText(std::string_view label, const std::vector<Row> &rows,
                        LabelsOf labelsOf) {
  std::string text = dataText(label, nullptr, 0);
  for (const Row &row : rows)
    text += rowText(&row, sizeof(Row), labelsOf(row));
  return text;
}

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_ASSEMBLYTEXT_H
