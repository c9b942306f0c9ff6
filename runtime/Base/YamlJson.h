// SPDX-License-Identifier: MIT

// YAML read as JSON. Scalars stay the text that was written ("1e-5" and 1e-5
// are the same), null becomes null; the reader of a value decides its type.

#ifndef QLORA_RUNTIME_BASE_YAMLJSON_H
#define QLORA_RUNTIME_BASE_YAMLJSON_H

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// One entry of a YAML file's top-level map.
struct YamlEntry {
  std::string key;
  nlohmann::json value;
  int line = 0; ///< from 1
};

/// A YAML text of one value. JSON is a subset of what is understood.
StatusOr<nlohmann::json> yamlTextToJson(std::string_view text);

/// The entries of a file whose top level is a map (or nothing), in order.
/// Errors name the file and line; a key written twice is refused.
StatusOr<std::vector<YamlEntry>> readYamlMap(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_YAMLJSON_H
