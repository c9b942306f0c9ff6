// SPDX-License-Identifier: MIT

// Parsing of argv.

#include "runtime/Base/CommandLine.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "runtime/Base/OptionValue.h"

namespace qlora {

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
  bool isList() const {
    using enum OptionType;
    return row->type == kNames || row->type == kTargets ||
           row->type == kLengths;
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

static Meaning lookUpName(std::string_view name, OptionTables tables) {
  Meaning meaning;
  meaning.synonym = findSynonym(name);
  std::string_view option = meaning.synonym ? meaning.synonym->option : name;
  for (std::span<const OptionRow> table : tables)
    if ((meaning.row = findOption(table, option)))
      return meaning;
  return {};
}

static Meaning lookUp(const Flag &flag, OptionTables tables) {
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

/// No name of a module or a kernel ends so.
static bool isProgram(std::string_view word) {
  return word.ends_with(".mlir") || word.ends_with(".mlirbc") ||
         word.ends_with(".so");
}

/// The model or the program among the words that follow a list.
static bool isFile(const std::string &word) {
  std::error_code ignored;
  const bool looksLikeOne = word.find_first_of("./") != word.npos;
  return isProgram(word) ||
         (looksLikeOne && std::filesystem::exists(word, ignored));
}

/// The words of a list as one text. A shell makes several of `[a, b]`, too.
static std::string listText(std::span<const std::string> words) {
  if (words.size() == 1)
    return words[0];
  if (words.front().starts_with('[') && words.back().ends_with(']'))
    return fmt::format("{}", fmt::join(words, " "));
  nlohmann::json names = nlohmann::json::array();
  for (std::string word : words) {
    std::replace(word.begin(), word.end(), ',', ' ');
    for (std::string_view name : splitWords(word))
      names.push_back(name);
  }
  return names.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// From the first word of a list, before `next`, to the last.
static std::span<const std::string> takeList(std::span<const std::string> words,
                                             size_t &next) {
  const size_t first = next - 1;
  while (next < words.size() && !words[next].starts_with('-') &&
         !isFile(words[next]))
    ++next;
  return words.subspan(first, next - first);
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
    if (hasNext && isBoolText(words[next]))
      return words[next++];
    return std::string("true");
  }
  bool isFlag = hasNext && words[next].starts_with("--");
  bool isInput = hasNext && meaning.isList() && isProgram(words[next]);
  if (!hasNext || isFlag || isInput)
    return Status::invalid("{} expects a value", flag.written);
  ++next;
  return meaning.isList() ? listText(takeList(words, next)) : words[next - 1];
}

Status unknownFlag(const std::string &written, OptionTables tables) {
  const Flag flag = splitFlag(written);
  std::string nearest = nearestName(flag.name, allOptionNames(tables));
  if (nearest.empty())
    return Status::invalid("unknown option '{}'; --help-all lists them",
                           flag.written);
  return Status::invalid("unknown option '{}'; did you mean '{}'?",
                         flag.written, flagSpelling(nearest));
}

StatusOr<CommandLine> parseCommandLine(std::span<const std::string> words,
                                       OptionTables tables,
                                       UnknownFlags unknown) {
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
        return unknownFlag(word, tables);
      line.rest.push_back(word);
      continue;
    }
    QLORA_ASSIGN_OR_RETURN(std::string text,
                           valueOf(flag, meaning, words, next));
    if (meaning.synonym) {
      auto translated = synonymText(*meaning.synonym, text,
                                    flagSpelling(meaning.synonym->option));
      if (!translated.isOk())
        return translated.status().withContext(flag.written);
      text = *translated;
    }
    line.settings.push_back({meaning.row, text, flag.written});
  }
  return line;
}

} // namespace qlora
