// SPDX-License-Identifier: MIT

// Settings of a command line, made from the values of other options.

#ifndef QLORA_TOOLS_QLORA_OPTIONSETTINGS_H
#define QLORA_TOOLS_QLORA_OPTIONSETTINGS_H

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/Options/Options.h"

namespace qlora {

/// Returns an option's value as a command line has it.
std::string valueText(const nlohmann::ordered_json &value);

/// Returns the option as a flag on a command line.
std::string flagOf(const OptionRow &row, const nlohmann::ordered_json &value);

/// Returns the setting of an option of optionTable().
OptionSetting settingOf(std::string_view name, std::string text);

/// Appends the option's value in `from`, unless it is the default.
void copySetting(const Options &from, const OptionRow &row,
                 std::vector<OptionSetting> &to);

/// Returns the rows of a group, which are consecutive in the table.
std::span<const OptionRow> groupOf(std::span<const OptionRow> table,
                                   std::string_view group);

/// Returns all values of an option that may be repeated; an empty value resets
/// nothing and is dropped.
std::vector<std::string> textsOf(std::span<const OptionSetting> settings,
                                 std::string_view option);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_OPTIONSETTINGS_H
