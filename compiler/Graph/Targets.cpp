// SPDX-License-Identifier: MIT

// PEFT's matching rules.

#include "compiler/Graph/Targets.h"

#include <nlohmann/json.hpp>

using namespace qlora;
using nlohmann::ordered_json;

static bool compile(const std::string &text, std::regex &out,
                    std::string &error) {
  try {
    out = std::regex(text, std::regex::ECMAScript);
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
    all = text == "all-linear";
    std::regex regex;
    if (!all && !compile(text, regex, error))
      return false;
    if (!all)
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
      error = "expects names of modules, but got " + item.dump();
      return false;
    }
    suffixes.push_back(item.get<std::string>());
  }
  return true;
}

bool Targets::matches(const std::string &path) const {
  if (all)
    return true;
  if (pattern)
    return std::regex_match(path, *pattern);
  for (const std::string &suffix : suffixes)
    if (path == suffix || (path.size() > suffix.size() &&
                           path.ends_with("." + suffix)))
      return true;
  return false;
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
      error = "expects a number for '" + key + "', but got " + number.dump();
      return false;
    }
    if (!compile("(.*\\.)?(" + key + ")", regex, error))
      return false;
    patterns.emplace_back(std::move(regex), number.get<double>());
  }
  return true;
}

std::optional<double> ValuePatterns::lookup(const std::string &path) const {
  for (const auto &[regex, value] : patterns)
    if (std::regex_match(path, regex))
      return value;
  return std::nullopt;
}
