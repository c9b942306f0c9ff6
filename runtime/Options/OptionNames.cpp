// SPDX-License-Identifier: MIT

// Spells and finds options in any table.

#include <algorithm>

#include "runtime/Options/OptionTable.h"

namespace qlora {

/// Optimal string alignment distance: insert, delete, replace, swap.
static size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1,
                                     std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j)
    d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replace = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string canonicalSpelling(std::string_view text) {
  std::string spelling(text);
  std::replace(spelling.begin(), spelling.end(), '-', '_');
  return spelling;
}

std::string flagSpelling(std::string_view name) {
  std::string spelling(name);
  std::replace(spelling.begin(), spelling.end(), '_', '-');
  return (name.size() == 1 ? "-" : "--") + spelling;
}

std::vector<std::string_view> splitWords(std::string_view words) {
  std::vector<std::string_view> split;
  while (!words.empty()) {
    size_t end = std::min(words.find(' '), words.size());
    if (end > 0)
      split.push_back(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return split;
}

std::vector<std::string_view> shownChoices(const OptionRow &row) {
  std::vector<std::string_view> choices = splitWords(row.choices);
  std::erase_if(choices,
                [](auto choice) { return choice.find('=') != choice.npos; });
  return choices;
}

/// Parses an alias of a row, such as "bf16=bfloat16|float32".
static OptionName aliasOf(const OptionRow &row, std::string_view alias) {
  const size_t equals = std::min(alias.find('='), alias.size());
  const size_t bar = std::min(alias.find('|'), alias.size());
  OptionName name{&row, alias.substr(0, equals)};
  if (alias.starts_with('-') || alias.starts_with('!')) {
    name.mark = alias[0];
    name.name.remove_prefix(1);
  }
  if (equals < alias.size())
    name.whenTrue = alias.substr(equals + 1, bar - equals - 1);
  if (bar < alias.size())
    name.whenFalse = alias.substr(bar + 1);
  return name;
}

std::vector<OptionName> optionNames(const OptionRow &row) {
  std::vector<OptionName> names = {{&row, row.name}};
  for (std::string_view alias : splitWords(row.aliases))
    names.push_back(aliasOf(row, alias));
  return names;
}

OptionName findOptionName(std::span<const OptionRow> table,
                          std::string_view name) {
  const std::string spelling = canonicalSpelling(name);
  for (const OptionRow &row : table)
    for (const OptionName &candidate : optionNames(row))
      if (spelling == candidate.name)
        return candidate;
  return {};
}

const OptionRow *findOption(std::span<const OptionRow> table,
                            std::string_view name) {
  return findOptionName(table, name).row;
}

std::string nearestName(std::string_view name,
                        std::span<const std::string> candidates) {
  std::string spelling = canonicalSpelling(name);
  size_t best = std::max<size_t>(2, spelling.size() / 3) + 1;
  std::string nearest;
  for (const std::string &candidate : candidates) {
    // Skip one-letter aliases, which are all within one edit of each other.
    if (candidate.size() < 3)
      continue;
    // Prefer a candidate whose first word equals the spelling.
    const bool isBegun = candidate.starts_with(spelling + "_");
    size_t distance = isBegun ? 1 : editDistance(spelling, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::vector<std::string> allOptionNames(OptionTables tables) {
  std::vector<std::string> names;
  for (std::span<const OptionRow> table : tables)
    for (const OptionRow &row : table)
      for (const OptionName &name : optionNames(row))
        if (name.isShown())
          names.emplace_back(name.name);
  return names;
}

} // namespace qlora
