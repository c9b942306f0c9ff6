// SPDX-License-Identifier: MIT

// Reads YAML with yaml-cpp; catches yaml-cpp's exceptions.

#include "runtime/Options/OptionYaml.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/Base/UserFiles.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Returns the maximum number of values to read from a YAML text, because YAML
/// aliases can expand a small text without bound. A text without aliases cannot
/// reach the maximum, since each value has at least one byte.
static size_t valuesOf(std::string_view text) {
  constexpr size_t kRepeated = 10000;
  return text.size() + kRepeated;
}

/// Converts a YAML node. `left`: number of values that may still be converted.
static StatusOr<json> nodeToJson(const YAML::Node &node, size_t &left,
                                 int depth = 0) {
  constexpr int kMaxDepth = 8;
  if (depth > kMaxDepth)
    return Status::invalid("is nested more than {} levels deep", kMaxDepth);
  if (left-- == 0)
    return Status::invalid("repeats too many values with aliases (*NAME). Fix: "
                           "write the value without aliases");
  switch (node.Type()) {
  case YAML::NodeType::Scalar:
    return json(node.Scalar());
  case YAML::NodeType::Sequence: {
    json array = json::array();
    for (const YAML::Node &element : node) {
      QLORA_ASSIGN_OR_RETURN(json value, nodeToJson(element, left, depth + 1));
      array.push_back(std::move(value));
    }
    return array;
  }
  case YAML::NodeType::Map: {
    json object = json::object();
    for (const auto &entry : node) {
      if (!entry.first.IsScalar())
        return Status::invalid("has a key that is not a name");
      QLORA_ASSIGN_OR_RETURN(json value,
                             nodeToJson(entry.second, left, depth + 1));
      if (!object.emplace(entry.first.Scalar(), std::move(value)).second)
        return Status::invalid("has the key '{}' twice", entry.first.Scalar());
    }
    return object;
  }
  default:
    return json(nullptr);
  }
}

StatusOr<json> yamlTextToJson(std::string_view text) {
  try {
    size_t left = valuesOf(text);
    return nodeToJson(YAML::Load(std::string(text)), left);
  } catch (const YAML::Exception &error) {
    return Status::invalid("'{}' is not a value: {}", text, error.msg);
  }
}

static StatusOr<std::vector<YamlEntry>>
topLevel(const YAML::Node &root, const std::string &path, size_t left) {
  std::vector<YamlEntry> entries;
  if (root.IsNull())
    return entries;
  if (!root.IsMap())
    return Status::invalid("{}: expects 'key: value' lines", path);
  std::set<std::string> seen;
  for (const auto &entry : root) {
    int line = entry.first.Mark().line + 1;
    if (!entry.first.IsScalar())
      return Status::invalid("{}:{}: a key must be a name", path, line);
    const std::string &key = entry.first.Scalar();
    if (!seen.insert(key).second)
      return Status::invalid("{}:{}: '{}' is given twice", path, line, key);
    auto value = nodeToJson(entry.second, left);
    if (!value.isOk())
      return value.status().withContext(
          fmt::format("{}:{}: '{}'", path, line, key));
    entries.push_back({key, std::move(*value), line});
  }
  return entries;
}

/// Compares the indentation of the line at which the parser failed, counted
/// from 0, with the nearest line of text above it: most syntax errors have this
/// cause, which the parser's own messages do not name. Returns a sentence about
/// both, which begins with "; ", or an empty text if they are equal.
static std::string indentText(std::string_view yaml, int line) {
  size_t before = 0, indent = 0; // of the last lines with text
  int lineBefore = 0, last = -1;
  for (int number = 0; number <= line && !yaml.empty(); ++number) {
    const std::string_view text = yaml.substr(0, yaml.find('\n'));
    yaml.remove_prefix(std::min(text.size() + 1, yaml.size()));
    const size_t start = text.find_first_not_of(' ');
    if (start == text.npos || text[start] == '#')
      continue;
    before = std::exchange(indent, start);
    lineBefore = std::exchange(last, number);
  }
  if (last != line || lineBefore < 0 || before == indent)
    return "";
  return fmt::format("; line {} is indented by {}, line {} by {}. Fix: indent "
                     "keys of one level alike",
                     line + 1, indent, lineBefore + 1, before);
}

StatusOr<std::vector<YamlEntry>> readYamlMap(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  try {
    return topLevel(YAML::Load(text), path, valuesOf(text));
  } catch (const YAML::Exception &error) {
    return Status::invalid("{}:{}: {}{}", path, error.mark.line + 1, error.msg,
                           indentText(text, error.mark.line));
  }
}

} // namespace qlora
