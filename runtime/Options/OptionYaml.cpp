// SPDX-License-Identifier: MIT

// Reads YAML with yaml-cpp; catches yaml-cpp's exceptions.

#include "runtime/Options/OptionYaml.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <set>

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

StatusOr<std::vector<YamlEntry>> readYamlMap(const std::string &path) {
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  try {
    return topLevel(YAML::Load(text), path, valuesOf(text));
  } catch (const YAML::Exception &error) {
    return Status::invalid("{}:{}: {}", path, error.mark.line + 1, error.msg);
  }
}

} // namespace qlora
