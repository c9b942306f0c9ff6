// SPDX-License-Identifier: MIT

// Converts text to axes, and axes to points.

#include "runtime/Options/SweepGrid.h"

#include <algorithm>
#include <set>

namespace qlora {

StatusOr<SweepAxis> parseSweepAxis(std::string_view text) {
  const size_t equals = text.find('=');
  SweepAxis axis{std::string(text.substr(0, equals)), {}};
  for (size_t at = equals; at < text.size();) {
    const size_t comma = std::min(text.find(',', at + 1), text.size());
    axis.values.emplace_back(text.substr(at + 1, comma - at - 1));
    at = comma;
  }
  const std::set<std::string> distinct(axis.values.begin(), axis.values.end());
  if (axis.name.empty() || axis.values.empty() || distinct.contains("") ||
      distinct.size() < axis.values.size())
    return Status::invalid("--sweep: expects NAME=VALUE,VALUE,..., each value "
                           "once, but got '{}'",
                           text);
  return axis;
}

StatusOr<std::vector<SweepAxis>> sweepAxes(std::span<const std::string> words) {
  std::vector<SweepAxis> axes;
  for (size_t i = 0; i < words.size();) {
    std::string text = words[i];
    while (++i < words.size() && words[i].find('=') == std::string::npos)
      text += "," + words[i];
    QLORA_ASSIGN_OR_RETURN(SweepAxis axis, parseSweepAxis(text));
    axes.push_back(std::move(axis));
  }
  return axes;
}

static OptionName findIn(OptionTables tables, std::string_view name) {
  for (std::span<const OptionRow> table : tables)
    if (const OptionName found = findOptionName(table, name); found.row)
      return found;
  return {};
}

StatusOr<std::vector<OptionSetting>>
SweepPoint::settings(OptionTables tables) const {
  std::vector<OptionSetting> all;
  for (const auto &[option, value] : values) {
    const OptionName name = findIn(tables, option);
    const std::string where = fmt::format("--sweep: '{}'", option);
    if (!name.row || name.isSwitch())
      return unknownOption(option, allOptionNames(tables)).withContext(where);
    if (name.isRefused())
      return refusedOption(name).withContext(where);
    if (name.row->scope == OptionScope::kOutput ||
        name.row->name == std::string_view("model_name_or_path"))
      return Status::invalid(
          "--sweep: {} cannot be swept: all runs have one base, and write to "
          "their own folders in --output-dir; remove it",
          name.row->name);
    all.push_back({name.row, value, flagSpelling(name.row->name)});
  }
  return all;
}

std::string SweepPoint::name() const {
  std::string text;
  for (const auto &[option, value] : values)
    text += (text.empty() ? "" : ",") + option + "=" + value;
  std::ranges::replace(text, '/', '_');
  return text;
}

std::vector<SweepPoint> sweepPoints(std::span<const SweepAxis> axes) {
  std::vector<SweepPoint> points = {{}};
  for (const SweepAxis &axis : axes) {
    std::vector<SweepPoint> longer;
    for (const SweepPoint &point : points)
      for (const std::string &value : axis.values) {
        longer.push_back(point);
        longer.back().values.emplace_back(axis.name, value);
      }
    points = std::move(longer);
  }
  return points;
}

} // namespace qlora
