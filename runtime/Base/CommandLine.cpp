// SPDX-License-Identifier: MIT

// Parses arguments with CLI11, which finds options and their values. The
// arguments are converted first, because CLI11 does not accept `--packing
// false`, takes flags as values, and cannot end a list before the input.

#include "runtime/Base/CommandLine.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/OptionValue.h"

namespace qlora {

namespace {

class Parser {
public:
  explicit Parser(const Tool &tool);
  StatusOr<CommandLine> parse(std::span<const std::string> words);

private:
  void add(const OptionRow &row);
  const std::string &takeAhead();
  Status prepare(const std::string &word);
  Status prepareOption(const std::string &word);
  Status unknown(const std::string &flag) const;
  Status take(const CLI::Option &option);
  Status answerQuestions();

  const Tool &tool;
  CLI::App app;
  CLI::Option *inputs;
  std::map<const CLI::Option *, OptionName> names;
  std::vector<std::span<const OptionRow>> tables;
  CommandLine line;
  std::span<const std::string> ahead; ///< words not processed yet
  std::vector<std::string> prepared;  ///< words for CLI11
  bool isInList = false;
  std::set<const CLI::Option *> lists; ///< lists given so far
};

} // namespace

static bool isFlag(const OptionName &name) {
  return name.isSwitch() || name.row->type == OptionType::kBool;
}

static bool isList(const OptionName &name) {
  using enum OptionType;
  const OptionType type = name.row->type;
  return !name.isSwitch() &&
         (type == kNames || type == kTargets || type == kLengths ||
          type == kTokens || type == kNumbers || type == kTextMap);
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

Parser::Parser(const Tool &tool) : tool(tool), tables(tool.tables) {
  app.set_help_flag();
  inputs = app.add_option("inputs")->expected(-1)->take_all();
  tables.push_back(questionTable());
  for (std::span<const OptionRow> table : tables)
    for (const OptionRow &row : table)
      add(row);
}

/// Adds the row as one CLI11 option, and each of its switches as another.
void Parser::add(const OptionRow &row) {
  const OptionName own = {&row, row.name};
  std::string spellings;
  for (const OptionName &name : optionNames(row)) {
    if (name.isRefused())
      continue;
    std::string flag = flagSpelling(name.name);
    if (isFlag(name))
      flag += ",!" + flagSpelling(fmt::format("no_{}", name.name));
    if (name.isSwitch())
      names[app.add_flag(flag)->take_all()] = name;
    else
      spellings += (spellings.empty() ? "" : ",") + flag;
  }
  CLI::Option *option =
      isFlag(own) ? app.add_flag(spellings) : app.add_option(spellings);
  constexpr int kMostNames = 1 << 16;
  if (isList(own))
    option->expected(1, kMostNames);
  names[option->take_all()] = own;
}

Status Parser::unknown(const std::string &flag) const {
  const size_t start = std::min(flag.find_first_not_of('-'), flag.size());
  for (std::span<const OptionRow> table : tables)
    if (const OptionName name = findOptionName(table, flag.substr(start));
        name.isRefused())
      return refusedOption(name).withContext(flag);
  if (canonicalSpelling(flag.substr(start)) == "hub_token")
    return Status::invalid("'{}' would show the token in the list of "
                           "processes; run hf auth login, or set HF_TOKEN",
                           flag);
  const std::string nearest =
      nearestName(flag.substr(start), allOptionNames(tables));
  if (nearest.empty())
    return Status::invalid("unknown option '{}'; --help-all lists them", flag);
  return Status::invalid("unknown option '{}'; did you mean '{}'?", flag,
                         flagSpelling(nearest));
}

const std::string &Parser::takeAhead() {
  const std::string &word = ahead[0];
  ahead = ahead.subspan(1);
  return word;
}

Status Parser::prepareOption(const std::string &word) {
  const size_t equals = std::min(word.find('='), word.size());
  const std::string written = word.substr(0, equals);
  std::string flag = written;
  std::ranges::replace(flag, '_', '-');
  const bool isOneDash = !flag.starts_with("--");
  const CLI::Option *option = nullptr;
  if (!isOneDash || flag.size() == 2)
    option = app.get_option_no_throw(flag);
  if (!option) {
    const size_t start = std::min(written.find_first_not_of('-'), equals);
    if (!tool.isForeign || !tool.isForeign(written.substr(start)))
      return unknown(written);
    line.foreign.push_back(word);
    return Status::ok();
  }
  const OptionName &name = names.at(option);
  prepared.push_back(flag);
  if (isFlag(name)) {
    if (equals < word.size())
      prepared.back() += word.substr(equals);
    else if (!ahead.empty() && isBoolText(ahead[0]))
      prepared.back() += "=" + takeAhead();
    return Status::ok();
  }
  if (isList(name) && !lists.insert(option).second)
    return Status::invalid("{} is given twice; remove one", written);
  if (equals < word.size()) {
    prepared.push_back(word.substr(equals + 1));
    if (isList(name))
      prepared.push_back("--"); // ends only the list, not the options
    return Status::ok();
  }
  if (ahead.empty() || ahead[0].starts_with("--") ||
      (isList(name) && isProgram(ahead[0])))
    return Status::invalid("{} expects a value", written);
  prepared.push_back(takeAhead());
  isInList = isList(name);
  return Status::ok();
}

Status Parser::prepare(const std::string &word) {
  const bool isOption = word.size() > 1 && word[0] == '-';
  if (isInList && !isOption && isFile(word))
    prepared.push_back("--");
  isInList = isInList && !isOption && !isFile(word);
  if (isOption)
    return prepareOption(word);
  prepared.push_back(word);
  return Status::ok();
}

/// Converts CLI11's results for an option to settings.
Status Parser::take(const CLI::Option &option) {
  const OptionName &name = names.at(&option);
  const std::string flag = flagSpelling(name.name);
  std::vector<std::string> texts = option.results();
  if (isList(name))
    texts = {listText(texts)};
  for (std::string &text : texts) {
    if (name.isSwitch()) {
      auto meaning = switchText(name, text, flagSpelling(name.row->name));
      if (!meaning.isOk())
        return meaning.status().withContext(flag);
      text = *meaning;
    }
    line.settings.push_back({name.row, text, flag});
  }
  return Status::ok();
}

Status Parser::answerQuestions() {
  Options questions(questionTable());
  QLORA_RETURN_IF_ERROR(questions.applySettings(line.settings));
  if (questions.boolean("help"))
    line.answer = commonHelp(tool);
  else if (questions.boolean("help_all"))
    line.answer = fullHelp(tool);
  else if (questions.boolean("version"))
    line.answer = tool.version;
  return Status::ok();
}

StatusOr<CommandLine> Parser::parse(std::span<const std::string> words) {
  for (ahead = words; !ahead.empty() && ahead[0] != "--";)
    QLORA_RETURN_IF_ERROR(prepare(takeAhead()));
  std::ranges::reverse(prepared); // CLI11 expects reverse order
  try {
    app.parse(std::move(prepared));
  } catch (const CLI::ParseError &error) {
    return Status::invalid("{}", error.what());
  }
  line.rest = inputs->results();
  if (!ahead.empty())
    line.rest.insert(line.rest.end(), ahead.begin() + 1, ahead.end());
  std::span<CLI::Option *const> given = app.parse_order();
  for (; !given.empty(); given = given.subspan(1))
    if (given[0] != inputs &&
        std::ranges::count(given, given[0]) == 1) // this is its last occurrence
      QLORA_RETURN_IF_ERROR(take(*given[0]));
  QLORA_RETURN_IF_ERROR(answerQuestions());
  return std::move(line);
}

StatusOr<CommandLine> parseCommandLine(std::span<const std::string> words,
                                       const Tool &tool) {
  return Parser(tool).parse(words);
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
