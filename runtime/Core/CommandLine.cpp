// SPDX-License-Identifier: MIT

// Parsing of argv, and --help.

#include "runtime/Core/CommandLine.h"

#include <algorithm>
#include <optional>

#include "runtime/Core/OptionValue.h"

namespace qlora {

using Tables = std::span<const std::span<const OptionRow>>;

namespace {

/// One word that starts with a dash, before it is looked up.
struct Flag {
  std::string written;              ///< "--lora-r"
  std::string name;                 ///< "lora_r"
  std::optional<std::string> value; ///< of --name=value
};

/// What a flag's name turned out to mean.
struct Meaning {
  const OptionRow *row = nullptr;
  const OptionSynonym *synonym = nullptr;
  bool isNegated = false;

  bool isBoolean() const {
    return synonym || (row && row->type == OptionType::kBool);
  }
};

} // namespace

static Flag splitFlag(const std::string &word) {
  size_t equals = word.find('=');
  Flag flag;
  flag.written = word.substr(0, equals);
  size_t start =
      std::min(flag.written.find_first_not_of('-'), flag.written.size());
  flag.name = canonicalSpelling(flag.written.substr(start));
  if (equals != word.npos)
    flag.value = word.substr(equals + 1);
  return flag;
}

static Meaning lookUpName(std::string_view name, Tables tables) {
  Meaning meaning;
  meaning.synonym = findSynonym(name);
  std::string_view option = meaning.synonym ? meaning.synonym->option : name;
  for (std::span<const OptionRow> table : tables)
    if ((meaning.row = findOption(table, option)))
      return meaning;
  return {};
}

static Meaning lookUp(const Flag &flag, Tables tables) {
  Meaning meaning = lookUpName(flag.name, tables);
  if (!meaning.row && flag.name.starts_with("no_")) {
    Meaning positive =
        lookUpName(std::string_view(flag.name).substr(3), tables);
    if (positive.isBoolean()) {
      positive.isNegated = true;
      return positive;
    }
  }
  return meaning;
}

static StatusOr<std::string> valueOf(const Flag &flag, const Meaning &meaning,
                                     std::span<const std::string> words,
                                     size_t &next) {
  if (meaning.isNegated) {
    if (flag.value)
      return Status::invalid("{} takes no value", flag.written);
    return std::string("false");
  }
  if (flag.value)
    return *flag.value;
  bool hasNext = next < words.size();
  if (meaning.isBoolean()) {
    if (hasNext && (words[next] == "true" || words[next] == "false" ||
                    words[next] == "True" || words[next] == "False"))
      return words[next++];
    return std::string("true");
  }
  bool isFlag = hasNext && words[next].starts_with("--");
  if (!hasNext || isFlag)
    return Status::invalid("{} expects a value", flag.written);
  return words[next++];
}

static Status unknownFlag(const Flag &flag, Tables tables) {
  std::string nearest = nearestName(flag.name, allOptionNames(tables));
  if (nearest.empty())
    return Status::invalid("unknown option '{}'; see --help", flag.written);
  return Status::invalid("unknown option '{}'; did you mean '--{}'?",
                         flag.written, nearest);
}

StatusOr<CommandLine> parseCommandLine(std::span<const std::string> words,
                                       Tables tables, UnknownFlags unknown) {
  CommandLine line;
  for (size_t next = 0; next < words.size();) {
    const std::string &word = words[next++];
    if (word == "--") {
      line.rest.insert(line.rest.end(), words.begin() + next, words.end());
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      line.rest.push_back(word);
      continue;
    }
    Flag flag = splitFlag(word);
    Meaning meaning;
    bool isShort = word[1] != '-';
    if (!isShort || flag.name.size() == 1)
      meaning = lookUp(flag, tables);
    if (!meaning.row) {
      if (unknown == UnknownFlags::kReject)
        return unknownFlag(flag, tables);
      line.rest.push_back(word);
      continue;
    }
    QLORA_ASSIGN_OR_RETURN(std::string text,
                           valueOf(flag, meaning, words, next));
    if (meaning.synonym) {
      auto translated = synonymText(*meaning.synonym, text);
      if (!translated.isOk())
        return translated.status().withContext(flag.written);
      text = *translated;
    }
    line.settings.push_back({meaning.row, text, flag.written});
  }
  return line;
}

static std::string valueHint(const OptionRow &row) {
  switch (row.type) {
  case OptionType::kBool:
    return "";
  case OptionType::kInt:
    return " N";
  case OptionType::kFloat:
    return " X";
  case OptionType::kString:
    return " TEXT";
  case OptionType::kPath:
    return " PATH";
  case OptionType::kSize:
    return *row.choices ? fmt::format(" SIZE|{}", row.choices) : " SIZE";
  case OptionType::kNames:
  case OptionType::kTargets:
    return " A,B";
  case OptionType::kLengths:
    return " N,M";
  case OptionType::kNumberMap:
    return " {NAME: X}";
  case OptionType::kChoice:
    break;
  }
  std::string choices;
  for (std::string_view choice : splitWords(row.choices))
    if (choice.find('=') == choice.npos)
      choices += fmt::format("{}{}", choices.empty() ? " " : "|", choice);
  return choices;
}

std::string optionHelp(Tables tables) {
  std::string help;
  std::string_view group;
  for (std::span<const OptionRow> table : tables)
    for (const OptionRow &row : table) {
      if (group != row.group)
        help += fmt::format("\n{}:\n", group = row.group);
      std::string flag = fmt::format("  --{}{}", row.name, valueHint(row));
      help += fmt::format("{}\n        {}", flag, row.help);
      bool hasDefault = *row.initial && row.type != OptionType::kBool;
      if (hasDefault)
        help += fmt::format(" (default {})", row.initial);
      if (row.scope == OptionScope::kProgram)
        help += " [fixed when compiled]";
      help += "\n";
    }
  return help;
}

} // namespace qlora
