// SPDX-License-Identifier: MIT

// Parses inputs with weights, and names of columns.

#include "runtime/Options/DataValues.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "runtime/Base/HubReference.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionYaml.h"

namespace qlora {

using json = nlohmann::ordered_json;

static StatusOr<double> parseWeight(const std::string &text) {
  constexpr double kMost = 1000;
  double weight = 0;
  const char *end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, weight);
  if (error != std::errc() || at != end || !(weight > 0) || weight > kMost)
    return Status::invalid("the weight '{}' is not a number above 0 and up to "
                           "{:.0f}",
                           text, kMost);
  return weight;
}

static Status notAPath(const json &raw) {
  return Status::invalid("expects a path, or {{path: FILE, weight: NUMBER}}, "
                         "but got {}",
                         dumpJson(raw));
}

/// Parses a path or {path, weight}; the weight is optional.
static StatusOr<json> parseWeighted(const json &raw) {
  if (raw.is_string() && !raw.get_ref<const std::string &>().empty())
    return raw;
  const auto isText = [&](const char *key) {
    return raw.contains(key) && raw[key].is_string();
  };
  if (!raw.is_object() || !isText("path"))
    return notAPath(raw);
  json parsed = {{"path", raw["path"]}, {"weight", 1.0}};
  if (raw.size() == 1)
    return parsed;
  if (raw.size() != 2 || !isText("weight"))
    return notAPath(raw);
  QLORA_ASSIGN_OR_RETURN(parsed["weight"],
                         parseWeight(raw["weight"].get<std::string>()));
  return parsed;
}

StatusOr<json> parsePaths(const json &raw) {
  if (raw.is_string())
    return raw;
  if (!raw.is_array())
    return parseWeighted(raw);
  json paths = json::array();
  for (const json &element : raw) {
    QLORA_ASSIGN_OR_RETURN(json path, parseWeighted(element));
    paths.push_back(std::move(path));
  }
  return paths.empty() ? StatusOr<json>(notAPath(raw)) : paths;
}

static StatusOr<json> resolved(const json &element, const std::string &folder) {
  if (element.is_object())
    return json{{"path", absolutePath(element.at("path"), folder)},
                {"weight", element.at("weight")}};
  const std::string text = element.get<std::string>();
  const std::string whole = absolutePath(text, folder);
  const size_t colon = text.rfind(':');
  std::error_code error;
  // A hub reference has colons of its own: hf://datasets/NAME, train[:500].
  const bool isPartOfName =
      isHubReference(text) && text.find_first_of("/]", colon) != text.npos;
  if (colon == text.npos || isPartOfName ||
      std::filesystem::exists(whole, error))
    return json{{"path", whole}, {"weight", 1.0}};
  QLORA_ASSIGN_OR_RETURN(const double weight,
                         parseWeight(text.substr(colon + 1)));
  return json{{"path", absolutePath(text.substr(0, colon), folder)},
              {"weight", weight}};
}

/// Returns all paths of a canonical value as {path, weight}.
static json pathList(const json &value) {
  if (value.is_array())
    return value;
  if (value.get_ref<const std::string &>().empty())
    return json::array();
  return json::array({json{{"path", value}, {"weight", 1.0}}});
}

/// Simplifies a single path without a weight to a string, as in kPath options.
static json canonicalPaths(const json &paths) {
  if (paths.size() == 1 && paths[0].at("weight") == 1.0)
    return paths[0].at("path");
  return paths;
}

StatusOr<json> resolvedPaths(const json &parsed, const std::string &folder) {
  if (parsed.is_string() && parsed.get_ref<const std::string &>().empty())
    return parsed;
  json paths = json::array();
  for (const json &element :
       parsed.is_array() ? parsed : json::array({parsed})) {
    QLORA_ASSIGN_OR_RETURN(json path, resolved(element, folder));
    paths.push_back(std::move(path));
  }
  return canonicalPaths(paths);
}

json joinedPaths(const json &earlier, const json &later) {
  json paths = pathList(earlier);
  for (const json &path : pathList(later))
    paths.push_back(path);
  return canonicalPaths(paths);
}

std::vector<WeightedPath> weightedPaths(const json &value) {
  std::vector<WeightedPath> paths;
  for (const json &element : pathList(value))
    paths.push_back({element.at("path"), element.at("weight")});
  return paths;
}

StatusOr<json> parseTextMap(const json &raw) {
  json pairs = raw;
  if (raw.is_string()) {
    const std::string text = raw.get<std::string>();
    QLORA_ASSIGN_OR_RETURN(
        pairs, yamlTextToJson(text.starts_with('{') ? text : "[" + text + "]"));
  }
  const auto isText = [](const json &text) { return text.is_string(); };
  if (!pairs.is_structured() || !std::ranges::all_of(pairs, isText))
    return Status::invalid("expects NAME=TEXT or a map such as {{prompt: "
                           "question}}, but got {}",
                           dumpJson(raw));
  // Sort by name, because the order of columns has no meaning.
  if (pairs.is_object())
    return json(pairs.get<std::map<std::string, json>>());
  std::map<std::string, std::string> map;
  for (const json &pair : pairs) {
    const std::string text = pair.get<std::string>();
    const size_t equals = text.find('=');
    if (equals == text.npos || map.contains(text.substr(0, equals)))
      return Status::invalid("expects NAME=TEXT, each name once, but got '{}'",
                             text);
    map[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return json(map);
}

} // namespace qlora
