// SPDX-License-Identifier: MIT

// Converts YAML to JSON. Null stays null, but other scalars become strings
// ("1e-5" and 1e-5 are equal), because the option determines the type.

#ifndef QLORA_RUNTIME_OPTIONS_OPTIONYAML_H
#define QLORA_RUNTIME_OPTIONS_OPTIONYAML_H

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// One entry of a YAML file's top-level map.
struct YamlEntry {
  std::string key;
  nlohmann::ordered_json value;
  int line = 0;             ///< line number from 1; 0: not from a file
  std::string written = {}; ///< key in the file, if `key` is a translation

  /// Returns the key as written in the file.
  const std::string &spelling() const {
    return written.empty() ? key : written;
  }
};

/// Parses YAML text with one value. JSON is valid YAML.
StatusOr<nlohmann::ordered_json> yamlTextToJson(std::string_view text);

/// Reads the entries of a file whose top level is a map (or empty), in order.
/// Errors name the file and line; a duplicate key is an error.
StatusOr<std::vector<YamlEntry>> readYamlMap(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_OPTIONYAML_H
