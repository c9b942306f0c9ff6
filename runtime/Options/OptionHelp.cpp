// SPDX-License-Identifier: MIT

// Layout of --help.

#include "runtime/Options/CommandLine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <ranges>

namespace qlora {

static constexpr size_t kWidth = 80;
static constexpr size_t kFlagColumn = 2, kContinuedColumn = 6;
static constexpr size_t kHelpColumn = 24; ///< argparse's column

static std::string valueHint(const OptionRow &row) {
  const std::string choices =
      fmt::format("{}", fmt::join(shownChoices(row), "|"));
  auto orChoice = [&](std::string_view hint) {
    return fmt::format(" {}{}{}", hint, choices.empty() ? "" : "|", choices);
  };
  switch (row.type) {
  case OptionType::kBool:
    return "";
  case OptionType::kInt:
    return orChoice("N");
  case OptionType::kSteps:
  case OptionType::kFloat:
    return " X";
  case OptionType::kString:
    return " TEXT";
  case OptionType::kPath: // if there are many words, the help lists them
    return choices.size() > 40 ? " PATH|NAME" : orChoice("PATH");
  case OptionType::kSize:
    return orChoice("SIZE");
  case OptionType::kNames:
  case OptionType::kChoices:
  case OptionType::kTargets:
    return " NAME [NAME ...]";
  case OptionType::kLengths:
  case OptionType::kTokens:
  case OptionType::kNumbers:
    return " N [N ...]";
  case OptionType::kFloats:
    return " X [X ...]";
  case OptionType::kNumberMap:
    return " {NAME: X}";
  case OptionType::kPaths:
    return " PATH[:WEIGHT]";
  case OptionType::kTextMap:
    return " NAME=TEXT [NAME=TEXT ...]";
  case OptionType::kChoice: // if they need more than a line, the help has them
    break;
  }
  const size_t line = kFlagColumn + flagSpelling(row.name).size() + 1;
  return line + choices.size() > kWidth ? " NAME" : " " + choices;
}

/// Returns all spellings of an option, with its values: "-o", "--output PATH";
/// "--compute-dtype bfloat16|float32", "--dtype", "--bf16 (bfloat16)".
static std::vector<std::string> spellings(const OptionRow &row) {
  std::vector<std::string> all = {flagSpelling(row.name) + valueHint(row)};
  std::vector<std::string> switches;
  for (const OptionName &name : optionNames(row) | std::views::drop(1) |
                                    std::views::filter(&OptionName::isShown))
    if (name.isSwitch())
      switches.push_back(
          fmt::format("{} ({})", flagSpelling(name.name), name.whenTrue));
    else
      all.insert(name.name.size() == 1 ? all.begin() : all.end(),
                 flagSpelling(name.name));
  all.insert(all.end(), switches.begin(), switches.end());
  const bool isOn = std::string_view(row.initial) == "true";
  if (row.type == OptionType::kBool && isOn)
    all.push_back(flagSpelling(fmt::format("no_{}", row.name)));
  for (size_t i = 0; i + 1 < all.size(); ++i)
    all[i] += ",";
  return all;
}

static std::string textOf(const OptionRow &row) {
  const std::string_view initial = row.initial;
  std::string notes;
  if (initial != "" && initial != "[]" && initial != "{}" && initial != "false")
    notes = fmt::format("default: {}", initial);
  if (row.scope == OptionScope::kProgram)
    notes += notes.empty() ? "compiled in" : "; compiled in";
  return notes.empty() ? row.help : fmt::format("{} ({})", row.help, notes);
}

/// Appends the words `pieces` to `text`, which ends at `column`. Starts a new
/// line with `indent` spaces before a word that would exceed kWidth.
template <typename Piece>
static void wrap(std::string &text, size_t column, size_t indent,
                 const std::vector<Piece> &pieces) {
  bool isFirst = true;
  for (const Piece &piece : pieces) {
    if (!isFirst && column + 1 + piece.size() > kWidth) {
      text += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!isFirst) {
      text += " ";
      ++column;
    }
    text += piece;
    column += piece.size();
    isFirst = false;
  }
}

static std::string rowHelp(const OptionRow &row) {
  std::string text(kFlagColumn, ' ');
  wrap(text, kFlagColumn, kContinuedColumn, spellings(row));
  if (text.size() + 2 > kHelpColumn)
    text += "\n" + std::string(kHelpColumn, ' ');
  else
    text.resize(kHelpColumn, ' ');
  const std::string words = textOf(row);
  wrap(text, kHelpColumn, kHelpColumn, splitWords(words));
  return text + "\n";
}

std::span<const OptionRow> questionTable() {
  static const OptionRow kRows[] = {
      {"help", OptionType::kBool, "false", OptionScope::kRun, "Help",
       "list the common options", "h"},
      {"help_all", OptionType::kBool, "false", OptionScope::kRun, "Help",
       "list all options"},
      {"version", OptionType::kBool, "false", OptionScope::kRun, "Help",
       "print the version"},
  };
  return kRows;
}

std::string commonHelp(const Tool &tool) {
  if (tool.tables.empty())
    return fmt::format("{}\nexample:\n{}", tool.usage, tool.example);
  std::string help = fmt::format("{}\noptions:\n", tool.usage);
  for (std::string_view name : tool.common) {
    const OptionRow *row = nullptr;
    for (size_t i = 0; i < tool.tables.size() && !row; ++i)
      row = findOption(tool.tables[i], name);
    assert(row && "no such option in the tables");
    help += rowHelp(*row);
  }
  return fmt::format("{}\nexample:\n{}\n--help-all lists every option.\n",
                     help, tool.example);
}

std::string fullHelp(const Tool &tool) {
  std::string help(tool.usage);
  std::vector<HelpSection> sections = tool.sections;
  sections.push_back({questionTable(), {OptionScope::kRun}, ""});
  std::string_view heading; // consecutive sections may share it
  for (const HelpSection &section : sections) {
    for (const OptionRow &row : section.rows) {
      if (!section.scopes.empty() &&
          !std::ranges::count(section.scopes, row.scope))
        continue;
      const std::string_view own =
          section.heading.empty() ? row.group : section.heading;
      if (heading != own)
        help += fmt::format("\n{}:\n", heading = own);
      help += rowHelp(row);
    }
  }
  return help + std::string(tool.footer);
}

} // namespace qlora
