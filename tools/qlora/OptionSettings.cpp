// SPDX-License-Identifier: MIT

// Searches the option tables, and writes values as text.

#include "tools/qlora/OptionSettings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/Base/JsonText.h"

namespace qlora {

std::string valueText(const nlohmann::ordered_json &value) {
  return value.is_string() ? value.get<std::string>() : dumpExact(value);
}

std::string flagOf(const OptionRow &row, const nlohmann::ordered_json &value) {
  std::string text = valueText(value);
  if (row.type == OptionType::kSize && value == kAutoSize)
    text = "auto";
  else if (row.type == OptionType::kSize && value != 0)
    text += "B";
  return fmt::format("{}={}", flagSpelling(row.name), text);
}

OptionSetting settingOf(std::string_view name, std::string text) {
  return {findOption(optionTable(), name), std::move(text),
          flagSpelling(name)};
}

void copySetting(const Options &from, const OptionRow &row,
                 std::vector<OptionSetting> &to) {
  static const Options initial;
  const nlohmann::ordered_json &value = from.value(row.name);
  if (value != initial.value(row.name))
    to.push_back(settingOf(row.name, valueText(value)));
}

std::span<const OptionRow> groupOf(std::span<const OptionRow> table,
                                   std::string_view group) {
  const auto isOf = [&](const OptionRow &row) { return row.group == group; };
  const auto first = std::ranges::find_if(table, isOf);
  const auto last = std::ranges::find_if_not(first, table.end(), isOf);
  return {first, last};
}

std::vector<std::string> textsOf(std::span<const OptionSetting> settings,
                                 std::string_view option) {
  std::vector<std::string> texts;
  for (const OptionSetting &setting : settings)
    if (setting.row->name == option && !setting.text.empty())
      texts.push_back(setting.text);
  return texts;
}

} // namespace qlora
