// SPDX-License-Identifier: MIT

// Parses option values.

#include "runtime/Options/OptionValue.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/DataValues.h"
#include "runtime/Options/OptionYaml.h"

namespace qlora {

using json = nlohmann::ordered_json;

static std::string lowerCase(std::string_view text) {
  std::string lower(text);
  for (char &c : lower)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

static Status expected(std::string_view what, std::string_view text) {
  return Status::invalid("expects {}, but got '{}'", what, text);
}

/// Formats a list or map as users write it, without quotes around texts.
static std::string plain(const json &raw) {
  std::string text = raw.is_string() ? raw.get<std::string>() : dumpJson(raw);
  std::erase(text, '"');
  return text;
}

static Status checkRange(const OptionRow &row, double value) {
  if (value >= row.minimum && value <= row.maximum)
    return Status::ok();
  if (std::isinf(row.maximum))
    return Status::invalid("expects at least {}, but got {}", row.minimum,
                           value);
  return Status::invalid("expects a number from {} to {}, but got {}",
                         row.minimum, row.maximum, value);
}

template <typename Number> StatusOr<Number> parseNumber(std::string_view text) {
  Number value = 0;
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !std::isfinite(static_cast<double>(value)))
    return expected(std::is_integral_v<Number> ? "an integer" : "a number",
                    text);
  return value;
}
template StatusOr<int64_t> parseNumber<int64_t>(std::string_view);
template StatusOr<double> parseNumber<double>(std::string_view);

static StatusOr<bool> parseBool(std::string_view text) {
  std::string lower = lowerCase(text);
  for (std::string_view word : {"true", "yes", "on", "1"})
    if (lower == word)
      return true;
  for (std::string_view word : {"false", "no", "off", "0"})
    if (lower == word)
      return false;
  return expected("true or false", text);
}

bool isBoolText(std::string_view text) { return parseBool(text).isOk(); }

StatusOr<std::string> switchText(const OptionName &name, std::string_view text,
                                 std::string_view option) {
  QLORA_ASSIGN_OR_RETURN(bool isTrue, parseBool(text));
  const std::string_view meaning = isTrue ? name.whenTrue : name.whenFalse;
  if (meaning.empty())
    return Status::invalid("can only be true; set {} instead", option);
  return std::string(meaning);
}

StatusOr<int64_t> parseByteSize(std::string_view text) {
  size_t digits = text.find_first_not_of("0123456789.");
  std::string_view unit =
      digits == text.npos ? "" : text.substr(std::min(digits, text.size()));
  auto number = parseNumber<double>(text.substr(0, text.size() - unit.size()));
  while (!unit.empty() && unit.front() == ' ')
    unit.remove_prefix(1);
  std::string lower = lowerCase(unit);
  const char *kUnits = "kmgt";
  double factor = 1;
  if (!lower.empty() && lower != "b") {
    const char *found = std::strchr(kUnits, lower[0]);
    std::string rest = lower.substr(1);
    if (!found || !(rest.empty() || rest == "b" || rest == "ib"))
      return expected("a size such as 20GiB", text);
    factor = std::pow(rest == "b" ? 1000.0 : 1024.0, found - kUnits + 1);
  }
  if (!number.isOk() || *number * factor > 9e18)
    return expected("a size such as 20GiB", text);
  return static_cast<int64_t>(std::llround(*number * factor));
}

/// Whether the text is "pissa_niter_16" for the choice "pissa_niter_N".
static bool isNumbered(std::string_view choice, std::string_view text) {
  if (!choice.ends_with("_N") ||
      !text.starts_with(choice.substr(0, choice.size() - 1)))
    return false;
  text.remove_prefix(choice.size() - 1);
  return !text.empty() && text.size() < 5 &&
         text.find_first_not_of("0123456789") == text.npos;
}

static StatusOr<json> parseChoice(const OptionRow &row, std::string_view text) {
  std::string lower = lowerCase(text);
  for (std::string_view choice : splitWords(row.choices)) {
    size_t equals = choice.find('=');
    if (isNumbered(choice, lower))
      return json(lower);
    if (lower == lowerCase(choice.substr(0, equals)))
      return json(equals == choice.npos ? choice : choice.substr(equals + 1));
  }
  return Status::invalid("'{}' is not supported; choose from: {}", text,
                         fmt::join(shownChoices(row), ", "));
}

/// Parses `a, b` as the list that YAML writes as `[a, b]`.
static StatusOr<json> parseNames(const json &raw) {
  json names = raw;
  if (raw.is_string()) {
    QLORA_ASSIGN_OR_RETURN(
        names, yamlTextToJson("[" + raw.get<std::string>() + "]"));
  }
  const auto isName = [](const json &name) {
    return name.is_string() && !name.get_ref<const std::string &>().empty();
  };
  if (!names.is_array() || !std::ranges::all_of(names, isName))
    return expected("a list of names", plain(raw));
  return names;
}

/// Parses one choice, or a list of choices.
static StatusOr<json> parseChoices(const OptionRow &row, const json &raw) {
  QLORA_ASSIGN_OR_RETURN(json words, parseNames(raw));
  if (words.empty())
    return expected("a name, or a list of names", plain(raw));
  for (json &word : words) {
    QLORA_ASSIGN_OR_RETURN(
        word, parseChoice(row, word.get_ref<const std::string &>()));
  }
  return words.size() == 1 ? words[0] : words;
}

/// Whether an option with this default may be an empty list.
static bool isEmptyList(std::string_view initial) { return initial == "[]"; }

/// Parses a regular expression or a list of names. A single name becomes a list
/// of one name, which matches the same modules.
static StatusOr<json> parseTargets(const json &raw) {
  if (raw.is_string()) {
    std::string text = raw.get<std::string>();
    if (text == "all" || text == "all-linear" || text == "all_linear")
      return json("all-linear");
    if (text.find_first_of("*+?()[]{}|^$\\") != text.npos)
      return json(text);
  }
  QLORA_ASSIGN_OR_RETURN(json names, parseNames(raw));
  if (names.size() == 1 && names[0] == "all-linear")
    return names[0];
  return names;
}

template <typename Number = int64_t>
static StatusOr<std::vector<Number>> parseNumbers(const OptionRow &row,
                                                  const json &raw) {
  QLORA_ASSIGN_OR_RETURN(json texts, parseNames(raw));
  std::vector<Number> numbers;
  for (const json &text : texts) {
    QLORA_ASSIGN_OR_RETURN(
        Number number,
        parseNumber<Number>(text.get_ref<const std::string &>()));
    QLORA_RETURN_IF_ERROR(checkRange(row, static_cast<double>(number)));
    numbers.push_back(number);
  }
  return numbers;
}

/// Parses the input embedding's token ids; refuses PEFT's map of modules.
static StatusOr<json> parseTokens(const OptionRow &row, const json &raw) {
  if (raw.is_object())
    return expected("a list of token ids", plain(raw));
  QLORA_ASSIGN_OR_RETURN(const auto tokens, parseNumbers(row, raw));
  std::set<int64_t> seen;
  for (int64_t token : tokens)
    if (!seen.insert(token).second)
      return Status::invalid("has {} twice", token);
  return json(tokens);
}

static StatusOr<json> parseLengths(const OptionRow &row, const json &raw) {
  QLORA_ASSIGN_OR_RETURN(auto lengths, parseNumbers(row, raw));
  std::sort(lengths.begin(), lengths.end());
  if ((lengths.empty() && !isEmptyList(row.initial)) ||
      std::adjacent_find(lengths.begin(), lengths.end()) != lengths.end())
    return expected("one length, or several different lengths", plain(raw));
  return json(lengths);
}

static StatusOr<json> parseNumberMap(const OptionRow &row, const json &raw) {
  if (!raw.is_object())
    return expected("a map such as {q_proj: 16}", plain(raw));
  json map = json::object();
  for (const auto &[name, text] : raw.items()) {
    if (!text.is_string())
      return expected("a map of numbers", plain(raw));
    QLORA_ASSIGN_OR_RETURN(
        double value, parseNumber<double>(text.get_ref<const std::string &>()));
    QLORA_RETURN_IF_ERROR(checkRange(row, value));
    if (value == std::floor(value) && std::abs(value) < 1e15)
      map[name] = static_cast<int64_t>(value);
    else
      map[name] = value;
  }
  return map;
}

/// Converts numbers and booleans to text at every level, so that recorded
/// values and YAML scalars are parsed by the same code.
static json scalarsAsText(const json &raw) {
  if (raw.is_number() || raw.is_boolean())
    return dumpJson(raw);
  if (!raw.is_structured())
    return raw;
  json copy = raw;
  for (json &element : copy)
    element = scalarsAsText(element);
  return copy;
}

/// Parses a size. A large number without a unit is in bytes, as other tools
/// print it. A small number needs a unit.
static StatusOr<json> parseSize(const OptionRow &row, const std::string &text,
                                bool isWritten) {
  if (*row.choices && lowerCase(text) == row.choices)
    return json(kAutoSize);
  QLORA_ASSIGN_OR_RETURN(const int64_t bytes, parseByteSize(text));
  const bool hasUnit = text.find_first_not_of("0123456789. ") != text.npos;
  if (hasUnit || !isWritten || bytes == 0 || bytes >= 1 << 20)
    return json(bytes);
  return Status::invalid("'{}' has no unit and would be bytes; did you mean "
                         "{}{}?",
                         text, text, bytes < 1024 ? "GiB" : "MiB");
}

template <typename Number>
static StatusOr<json> inRange(const OptionRow &row, StatusOr<Number> value) {
  if (!value.isOk())
    return value.status();
  QLORA_RETURN_IF_ERROR(checkRange(row, static_cast<double>(*value)));
  return json(*value);
}

static StatusOr<json> parseSteps(const OptionRow &row, std::string_view text) {
  QLORA_ASSIGN_OR_RETURN(const double number, parseNumber<double>(text));
  QLORA_RETURN_IF_ERROR(checkRange(row, number));
  if (number > 0 && number < 1)
    return json(number);
  if (number != std::floor(number))
    return expected("a number of steps, or a fraction of all steps below 1",
                    text);
  return json(static_cast<int64_t>(number));
}

static bool isStructured(OptionType type) {
  using enum OptionType;
  return type == kNames || type == kChoices || type == kTargets ||
         type == kLengths || type == kTokens || type == kNumbers ||
         type == kFloats || type == kNumberMap || type == kTextMap;
}

StatusOr<json> parseOptionValue(const OptionRow &row, const json &value) {
  const json raw = scalarsAsText(value);
  if (raw.is_null())
    return parseOptionText(row, row.initial);
  if (!raw.is_string() && !isStructured(row.type) &&
      row.type != OptionType::kPaths)
    return expected("one value", plain(raw));
  const std::string text = raw.is_string() ? raw.get<std::string>() : "";
  switch (row.type) {
  case OptionType::kNames:
    return parseNames(raw);
  case OptionType::kTargets:
    return parseTargets(raw);
  case OptionType::kLengths:
    return parseLengths(row, raw);
  case OptionType::kTokens:
    return parseTokens(row, raw);
  case OptionType::kNumbers: {
    QLORA_ASSIGN_OR_RETURN(const auto numbers, parseNumbers(row, raw));
    return json(numbers);
  }
  case OptionType::kFloats: {
    QLORA_ASSIGN_OR_RETURN(const auto numbers, parseNumbers<double>(row, raw));
    return json(numbers);
  }
  case OptionType::kChoices:
    return parseChoices(row, raw);
  case OptionType::kNumberMap:
    return parseNumberMap(row, raw);
  case OptionType::kTextMap:
    return parseTextMap(raw);
  case OptionType::kPaths:
    return parsePaths(raw);
  case OptionType::kBool: {
    QLORA_ASSIGN_OR_RETURN(bool isTrue, parseBool(text));
    return json(isTrue);
  }
  case OptionType::kInt:
    if (*row.choices && lowerCase(text) == row.choices)
      return json(row.choices);
    return inRange(row, parseNumber<int64_t>(text));
  case OptionType::kSteps:
    return parseSteps(row, text);
  case OptionType::kFloat:
    return inRange(row, parseNumber<double>(text));
  case OptionType::kSize:
    return parseSize(row, text, value.is_string());
  case OptionType::kChoice:
    return parseChoice(row, text);
  case OptionType::kString:
  case OptionType::kPath:
    break;
  }
  return raw;
}

StatusOr<json> parseOptionText(const OptionRow &row, std::string_view text) {
  // `[qv]_proj` is a regular expression, but `[q_proj, v_proj]` is a list.
  bool looksStructured = isStructured(row.type) && !text.empty() &&
                         ((text.front() == '[' && text.back() == ']') ||
                          (text.front() == '{' && text.back() == '}'));
  if (!looksStructured)
    return parseOptionValue(row, json(text));
  QLORA_ASSIGN_OR_RETURN(json raw, yamlTextToJson(text));
  return parseOptionValue(row, raw);
}

} // namespace qlora
