// SPDX-License-Identifier: MIT

// Parses a command line in one loop over its words.

#include "runtime/Options/CommandLine.h"

#include <algorithm>
#include <cassert>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/OptionValue.h"

namespace qlora {

static bool isFlag(std::string_view word) {
  return word.size() > 1 && word[0] == '-';
}

/// Whether the word ends like the path of a model or a program.
static bool isProgram(std::string_view word) {
  return word.ends_with(".mlir") || word.ends_with(".mlirbc") ||
         word.ends_with(".so");
}

/// Whether a word in a list is instead the input: a program or existing file.
static bool isFile(const std::string &word) {
  std::error_code ignored;
  const bool looksLikeOne = word.find_first_of("./") != word.npos;
  return word == "-" || isProgram(word) ||
         (looksLikeOne && std::filesystem::exists(word, ignored));
}

/// Whether the option is true without a value.
static bool isBoolean(const OptionName &name) {
  return name.isSwitch() || !name.whenFalse.empty();
}

static bool isList(const OptionName &name) {
  using enum OptionType;
  const OptionType type = name.row->type;
  return !isBoolean(name) &&
         (type == kNames || type == kChoices || type == kTargets ||
          type == kLengths || type == kTokens || type == kNumbers ||
          type == kFloats || type == kTextMap);
}

/// Maps all flags to their options. A boolean option is a switch that selects
/// true or false. `--no-NAME` is a switch with the two values exchanged.
static std::map<std::string, OptionName> flagsOf(OptionTables tables) {
  std::map<std::string, OptionName> flags;
  for (std::span<const OptionRow> table : tables)
    for (const OptionRow &row : table)
      for (OptionName name : optionNames(row)) {
        if (name.isRefused())
          continue;
        const std::string spelling(name.name);
        if (!name.isSwitch()) // errors name the option, not the alias
          name = row.type == OptionType::kBool
                     ? OptionName{&row, row.name, "true", "false"}
                     : OptionName{&row, row.name};
        [[maybe_unused]] const bool isNew =
            flags.emplace(flagSpelling(spelling), name).second;
        assert(isNew && "two options have the same name");
        if (!isBoolean(name))
          continue;
        std::swap(name.whenTrue, name.whenFalse);
        flags.emplace(flagSpelling("no_" + spelling), name);
      }
  return flags;
}

/// Returns the error for `flag`, whose `name` has no dashes at the start.
static Status unknownFlag(OptionTables tables, const std::string &flag,
                          const std::string &name) {
  for (std::span<const OptionRow> table : tables)
    if (const OptionName found = findOptionName(table, name); found.isRefused())
      return refusedOption(found).withContext(flag);
  if (canonicalSpelling(name) == "hub_token")
    return Status::invalid("'{}' would show the token in the list of "
                           "processes; run hf auth login, or set HF_TOKEN",
                           flag);
  const std::string nearest = nearestName(name, allOptionNames(tables));
  if (nearest.empty())
    return Status::invalid("unknown option '{}'; --help-all lists them", flag);
  return Status::invalid("unknown option '{}'; did you mean '{}'?", flag,
                         flagSpelling(nearest));
}

/// Joins the words of a list: `a b`, or `[a, b]`, which a shell also splits.
static std::string listText(std::span<const std::string> words) {
  const std::string text = fmt::format("{}", fmt::join(words, " "));
  if (words.size() == 1 || (text.starts_with('[') && text.ends_with(']')))
    return text;
  nlohmann::json names = nlohmann::json::array();
  for (std::string word : words) {
    std::ranges::replace(word, ',', ' ');
    for (std::string_view name : splitWords(word))
      names.push_back(name);
  }
  return dumpExact(names);
}

/// Removes the value of `name` from the start of `words`. A boolean without a
/// value is true.
static StatusOr<std::string> takeValue(const OptionName &name,
                                       const std::string &flag,
                                       std::span<const std::string> &words) {
  if (isBoolean(name) && (words.empty() || !isBoolText(words[0])))
    return std::string("true");
  if (words.empty() || words[0].starts_with("--") ||
      (isList(name) && isProgram(words[0])))
    return Status::invalid("{} expects a value", flag);
  size_t count = 1;
  while (isList(name) && count < words.size() && !isFlag(words[count]) &&
         !isFile(words[count]))
    ++count;
  const auto taken = words.first(count);
  words = words.subspan(count);
  return listText(taken);
}

/// Returns the setting of `name` to `text`.
static StatusOr<OptionSetting> settingOf(const OptionName &name,
                                         std::string text) {
  const std::string flag = flagSpelling(name.name);
  // Options::applySettings refuses other texts of a boolean option.
  if (isBoolean(name) &&
      (isBoolText(text) || name.row->type != OptionType::kBool)) {
    auto meaning = switchText(name, text, flagSpelling(name.row->name));
    if (!meaning.isOk())
      return meaning.status().withContext(flag);
    text = *meaning;
  }
  return OptionSetting{name.row, text, flag};
}

static StatusOr<std::string> answerOf(const CommandLine &line,
                                      const Tool &tool) {
  Options questions(questionTable());
  QLORA_RETURN_IF_ERROR(questions.applySettings(line.settings));
  if (questions.boolean("help"))
    return commonHelp(tool);
  if (questions.boolean("help_all"))
    return fullHelp(tool);
  return std::string(questions.boolean("version") ? tool.version : "");
}

StatusOr<CommandLine> parseCommandLine(std::span<const std::string> words,
                                       const Tool &tool) {
  std::vector<std::span<const OptionRow>> tables = tool.tables;
  tables.push_back(questionTable());
  const std::map<std::string, OptionName> flags = flagsOf(tables);
  std::set<const OptionRow *> lists; // given so far
  CommandLine line;
  while (!words.empty() && words[0] != "--") {
    const std::string &word = words[0];
    words = words.subspan(1);
    if (!isFlag(word)) {
      line.rest.push_back(word);
      continue;
    }
    const size_t equals = std::min(word.find('='), word.size());
    const std::string flag = word.substr(0, equals);
    std::string spelling = flag;
    std::ranges::replace(spelling, '_', '-');
    const auto found = flags.find(spelling);
    if (found == flags.end()) {
      const size_t start = std::min(flag.find_first_not_of('-'), equals);
      if (!tool.isForeign || !tool.isForeign(flag.substr(start)))
        return unknownFlag(tables, flag, flag.substr(start));
      line.foreign.push_back(word);
      continue;
    }
    const OptionName &name = found->second;
    if (isList(name) && !lists.insert(name.row).second)
      return Status::invalid("{} is given twice; remove one", flag);
    std::string text = word.substr(std::min(equals + 1, word.size()));
    if (equals == word.size()) {
      QLORA_ASSIGN_OR_RETURN(text, takeValue(name, flag, words));
    }
    QLORA_ASSIGN_OR_RETURN(auto setting, settingOf(name, std::move(text)));
    line.settings.push_back(std::move(setting));
  }
  if (!words.empty())
    line.rest.insert(line.rest.end(), words.begin() + 1, words.end());
  QLORA_ASSIGN_OR_RETURN(line.answer, answerOf(line, tool));
  return line;
}

StatusOr<std::string> onlyInput(const CommandLine &line, const Tool &tool) {
  if (line.rest.empty())
    return Status::invalid("no {} is named; {}; see --help", tool.input,
                           tool.usage.substr(0, tool.usage.find('\n')));
  if (line.rest.size() > 1)
    return Status::invalid("expects one {}, but got '{}' and '{}'", tool.input,
                           line.rest[0], line.rest[1]);
  return line.rest[0];
}

} // namespace qlora
