// SPDX-License-Identifier: MIT

// yaml-cpp, with its exceptions turned into Status.

#include "runtime/Base/YamlJson.h"

#include <yaml-cpp/yaml.h>

#include <set>

#include "runtime/Base/UserFiles.h"

namespace qlora {

using nlohmann::json;

static StatusOr<json> nodeToJson(const YAML::Node &node, int depth) {
  // Aliases may make a small text an endless or exponentially large value.
  constexpr int kMaxDepth = 8;
  if (depth > kMaxDepth)
    return Status::invalid("is nested more than {} levels deep", kMaxDepth);
  switch (node.Type()) {
  case YAML::NodeType::Scalar:
    return json(node.Scalar());
  case YAML::NodeType::Sequence: {
    json array = json::array();
    for (const YAML::Node &element : node) {
      QLORA_ASSIGN_OR_RETURN(json value, nodeToJson(element, depth + 1));
      array.push_back(std::move(value));
    }
    return array;
  }
  case YAML::NodeType::Map: {
    json object = json::object();
    for (const auto &entry : node) {
      if (!entry.first.IsScalar())
        return Status::invalid("has a key that is not a name");
      QLORA_ASSIGN_OR_RETURN(json value, nodeToJson(entry.second, depth + 1));
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
    return nodeToJson(YAML::Load(std::string(text)), 0);
  } catch (const YAML::Exception &error) {
    return Status::invalid("'{}' is not a value: {}", text, error.msg);
  }
}

static StatusOr<std::vector<YamlEntry>> topLevel(const YAML::Node &root,
                                                 const std::string &path) {
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
    auto value = nodeToJson(entry.second, 0);
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
    return topLevel(YAML::Load(text), path);
  } catch (const YAML::Exception &error) {
    return Status::invalid("{}:{}: {}", path, error.mark.line + 1, error.msg);
  }
}

} // namespace qlora
