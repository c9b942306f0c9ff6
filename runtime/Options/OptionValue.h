// SPDX-License-Identifier: MIT

// Converts the text of an option's value, from a command line or YAML, to
// canonical JSON. Maps keep their order, since the first matching pattern of
// rank_pattern applies to a module.

#ifndef QLORA_RUNTIME_OPTIONS_OPTIONVALUE_H
#define QLORA_RUNTIME_OPTIONS_OPTIONVALUE_H

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

/// Parses command-line text (YAML flow syntax for lists and maps, which
/// includes JSON) to the canonical value of the row's type.
StatusOr<nlohmann::ordered_json> parseOptionText(const OptionRow &row,
                                                 std::string_view text);

/// Parses a structured value: a YAML node converted to JSON with its scalars as
/// strings, or a recorded value. A size in text, unlike a recorded size, needs
/// a unit unless it is large.
StatusOr<nlohmann::ordered_json>
parseOptionValue(const OptionRow &row, const nlohmann::ordered_json &raw);

/// Parses a whole text as a finite number, of type int64_t or double.
template <typename Number> StatusOr<Number> parseNumber(std::string_view text);

/// Whether the text is one of the words for true and false.
bool isBoolText(std::string_view text);

/// Returns the option value for a switch that is set to `text` (true or false).
/// Errors use the spelling `option`.
StatusOr<std::string> switchText(const OptionName &name, std::string_view text,
                                 std::string_view option);

/// Converts "20GiB" to 21474836480. Units are powers of 1024 for K, M, G, T,
/// KiB, ..., and powers of 1000 for KB, MB, .... No unit and B mean bytes.
StatusOr<int64_t> parseByteSize(std::string_view text);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_OPTIONVALUE_H
