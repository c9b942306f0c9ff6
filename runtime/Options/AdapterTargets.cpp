// SPDX-License-Identifier: MIT

// Implements PEFT's matching rules.

#include "runtime/Options/AdapterTargets.h"

#include "runtime/Base/JsonText.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

using namespace qlora;
using nlohmann::ordered_json;

/// Maximum LoRA rank; larger than the rank of any weight.
static constexpr double kMaxRank = 1 << 20;

/// Returns true if the text is valid in ECMAScript but has another meaning in
/// Python. This is so for classes such as [[:alpha:]], and for \ before a
/// letter that is not in `shared`: \A is the letter A in ECMAScript.
static bool isReadDifferently(const std::string &text) {
  static constexpr std::string_view shared = "bBdDfnrsStvwWxu";
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    char next = text[i + 1];
    if (text[i] == '[' && next == '[' && i + 2 < text.size() &&
        std::string_view(":.=").find(text[i + 2]) != std::string_view::npos)
      return true;
    if (text[i] != '\\')
      continue;
    if (std::isalpha(static_cast<unsigned char>(next)) &&
        shared.find(next) == std::string_view::npos)
      return true;
    ++i; // skip the escaped character
  }
  return false;
}

/// Compiles `prefix` + `text` + `suffix`; errors mention only `text`.
static bool compile(const std::string &prefix, const std::string &text,
                    const std::string &suffix, std::regex &out,
                    std::string &error) {
  try {
    if (isReadDifferently(text)) {
      error = "'" + text + "' uses Python syntax that is not supported here";
      return false;
    }
    out = std::regex(prefix + text + suffix, std::regex::ECMAScript);
    return true;
  } catch (const std::regex_error &exception) {
    error = "'" + text + "' is not a regular expression: " + exception.what();
    return false;
  }
}

static ordered_json parseJson(const std::string &text) {
  return ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool Targets::parse(const std::string &json, std::string &error) {
  ordered_json value = parseJson(json);
  if (value.is_string()) {
    auto text = value.get<std::string>();
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    all = lower == "all-linear";
    if (all)
      return true;
    std::regex regex;
    if (!compile("", text, "", regex, error))
      return false;
    pattern = std::move(regex);
    return true;
  }
  if (!value.is_array() || value.empty()) {
    error = "expects a list of module names, a regular expression or "
            "\"all-linear\", but got " +
            json;
    return false;
  }
  for (const ordered_json &item : value) {
    if (!item.is_string()) {
      error = "expects names of modules, but got " + dumpJson(item);
      return false;
    }
    suffixes.push_back(item.get<std::string>());
  }
  return true;
}

bool Targets::parseLayers(const std::string &json, const std::string &patterns,
                          std::string &error) {
  const ordered_json numbers = parseJson(json), names = parseJson(patterns);
  if (numbers.empty() && !names.empty()) {
    error = "layers_pattern needs layers_to_transform; add it, or remove "
            "layers_pattern";
    return false;
  }
  if (!numbers.empty() && suffixes.empty()) {
    error = "layers_to_transform needs lora_target_modules to be a list, not a "
            "regular expression; write a list, or select the layers in the "
            "expression";
    return false;
  }
  for (const ordered_json &number : numbers)
    layers.insert(number.get<int64_t>());
  for (const ordered_json &name : names)
    if (!compile(".*\\.", name.get<std::string>(), "\\.([0-9]+)\\..*",
                 beforeLayer.emplace_back(), error))
      return false;
  if (names.empty())
    beforeLayer.emplace_back(".*\\.[^.]*\\.([0-9]+)\\..*");
  return true;
}

/// Reads the layer number from the last capture group. Earlier groups belong to
/// the user's pattern.
int64_t Targets::layerOf(const std::string &path) const {
  std::smatch match;
  for (const std::regex &before : beforeLayer)
    if (std::regex_match(path, match, before)) {
      const std::string number = match[match.size() - 1].str();
      return number.size() < 10 ? std::stoll(number) : -1;
    }
  return -1;
}

bool Targets::isNamed(const std::string &path) const {
  return std::ranges::any_of(suffixes, [&](const std::string &suffix) {
    return path.ends_with("." + suffix);
  });
}

std::optional<int64_t>
Targets::findUnmatchedLayer(const std::vector<std::string> &paths) const {
  std::set<int64_t> left = layers;
  for (const std::string &path : paths)
    if (isNamed(path))
      left.erase(layerOf(path));
  return left.empty() ? std::nullopt : std::optional(*left.begin());
}

bool Targets::matches(const std::string &path) const {
  if (all)
    return true;
  if (pattern)
    return std::regex_match(path, *pattern);
  if (std::ranges::count(suffixes, path))
    return true;
  return isNamed(path) && (layers.empty() || layers.contains(layerOf(path)));
}

bool qlora::parseSavedModules(const std::string &json,
                              std::vector<std::string> &names,
                              std::string &error) {
  const auto list = nlohmann::json::parse(json, nullptr, false);
  names.clear();
  if (!list.is_array()) {
    error = "modules_to_save: expects a list, but got " + json;
    return false;
  }
  for (const auto &item : list) {
    if (!item.is_string()) {
      error = "modules_to_save: expects names";
      return false;
    }
    names.push_back(item.get<std::string>());
  }
  return true;
}

bool qlora::isSavedModule(const std::string &path,
                          const std::vector<std::string> &names) {
  // PEFT: re.match(rf"(^|.*\.){name}($|\..*)", path). Names have no special
  // characters, so this matches one or more whole components of the path.
  const std::string dotted = "." + path + ".";
  return std::any_of(names.begin(), names.end(), [&](const std::string &name) {
    return dotted.find("." + name + ".") != std::string::npos;
  });
}

double qlora::loraScale(double alpha, int64_t rank, bool rslora) {
  const auto r = static_cast<double>(rank);
  return rslora ? alpha / std::sqrt(r) : alpha / r;
}

bool ValuePatterns::parse(const std::string &json, std::string &error) {
  ordered_json value = parseJson(json);
  if (!value.is_object()) {
    error = "expects an object of module patterns, but got " + json;
    return false;
  }
  for (auto &[key, number] : value.items()) {
    std::regex regex;
    if (!number.is_number()) {
      error = "expects a number for '" + key + "', but got " + dumpJson(number);
      return false;
    }
    if (!compile("(.*\\.)?(", key, ")", regex, error))
      return false;
    patterns.push_back({key, std::move(regex), number.get<double>()});
  }
  return true;
}

std::optional<double> ValuePatterns::lookup(const std::string &path) const {
  for (const Pattern &pattern : patterns)
    if (std::regex_match(path, pattern.regex))
      return pattern.value;
  for (const Pattern &pattern : patterns)
    if (pattern.key == path)
      return pattern.value;
  return std::nullopt;
}

std::optional<std::string> ValuePatterns::findUnmatched(
    const std::vector<std::string> &paths) const {
  for (const Pattern &pattern : patterns)
    if (std::ranges::none_of(paths, [&](const std::string &path) {
          return path == pattern.key || std::regex_match(path, pattern.regex);
        }))
      return pattern.key;
  return std::nullopt;
}

std::optional<std::pair<std::string, double>>
ValuePatterns::findNoRank() const {
  for (const Pattern &pattern : patterns)
    if (!(pattern.value >= 1 && pattern.value <= kMaxRank) ||
        pattern.value != std::floor(pattern.value))
      return std::pair(pattern.key, pattern.value);
  return std::nullopt;
}

/// Escapes each dot that is not followed by `+`.
static std::string withPlainDots(const std::string &text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool isPlain = text[i] == '.' && !text.substr(i + 1).starts_with('+');
    plain += isPlain && !plain.ends_with('\\') ? "\\." : text.substr(i, 1);
  }
  return plain;
}

bool ParameterPatterns::parse(const std::string &json, std::string &error) {
  static const std::regex kRows(R"(.+\[[0-9]*(:[0-9]*)?\])");
  std::vector<std::string> texts;
  if (!parseSavedModules(json, texts, error))
    return false;
  for (const std::string &text : texts) {
    if (std::regex_match(text, kRows)) {
      error = "'" + text + "' chooses rows of a weight, which is not " +
              "supported. Fix: remove the range in [], to train all rows";
      return false;
    }
    std::regex regex;
    if (!compile("", withPlainDots(text), "", regex, error))
      return false;
    patterns.push_back({text, std::move(regex)});
  }
  return true;
}

bool ParameterPatterns::matches(const std::string &name) {
  bool isMatched = false;
  for (Pattern &pattern : patterns)
    if (std::regex_search(name, pattern.regex,
                          std::regex_constants::match_continuous))
      isMatched = pattern.hasMatched = true;
  return isMatched;
}

std::vector<std::string> ParameterPatterns::unmatched() const {
  std::vector<std::string> texts;
  for (const Pattern &pattern : patterns)
    if (!pattern.hasMatched)
      texts.push_back(pattern.text);
  return texts;
}
