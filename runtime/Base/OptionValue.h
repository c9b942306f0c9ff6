// SPDX-License-Identifier: MIT

// The value of one option: from what was written, on a command line or in YAML,
// to its canonical JSON form. Maps keep the order in which they were written,
// since of the patterns that match a module the first counts.

#ifndef QLORA_RUNTIME_BASE_OPTIONVALUE_H
#define QLORA_RUNTIME_BASE_OPTIONVALUE_H

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/OptionTable.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Text of the command line (YAML flow syntax for lists and maps, of which
/// JSON is a subset) to the canonical value of the row's type.
StatusOr<nlohmann::ordered_json> parseOptionText(const OptionRow &row,
                                                 std::string_view text);

/// The same for a value that already has structure: a YAML node turned into
/// JSON with its scalars as strings, or a recorded value. A size that is
/// written, and not recorded, needs a unit unless it is large.
StatusOr<nlohmann::ordered_json>
parseOptionValue(const OptionRow &row, const nlohmann::ordered_json &raw);

/// One of the words for true and false.
bool isBoolText(std::string_view text);

/// What true or false of a switch means for its option, which errors call
/// `option`.
StatusOr<std::string> switchText(const OptionName &name, std::string_view text,
                                 std::string_view option);

/// "20GiB" -> 21474836480. Units: none or B, K, M, G, T with B (1000) or iB
/// (1024) or alone (1024).
StatusOr<int64_t> parseByteSize(std::string_view text);

// YAML read as JSON. Scalars stay the text that was written ("1e-5" and 1e-5
// are the same), null becomes null; the reader of a value decides its type.

/// One entry of a YAML file's top-level map.
struct YamlEntry {
  std::string key;
  nlohmann::ordered_json value;
  int line = 0;             ///< from 1; 0: the file does not have it
  std::string written = {}; ///< key in the file, if `key` is a translation

  /// The key as the file has it.
  const std::string &spelling() const { return written.empty() ? key : written; }
};

/// A YAML text of one value. JSON is a subset of what is understood.
StatusOr<nlohmann::ordered_json> yamlTextToJson(std::string_view text);

/// The entries of a file whose top level is a map (or nothing), in order.
/// Errors name the file and line; a key written twice is refused.
StatusOr<std::vector<YamlEntry>> readYamlMap(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_OPTIONVALUE_H
