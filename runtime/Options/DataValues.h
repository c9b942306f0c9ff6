// SPDX-License-Identifier: MIT

// Option values that describe data: inputs with weights, and names of columns.
// The canonical form (right) is JSON, as for all options:
//
//   a.jsonl                    "/here/a.jsonl"
//   a.jsonl:2, b.jsonl         [{"path": "/here/a.jsonl", "weight": 2},
//                               {"path": "/here/b.jsonl", "weight": 1}]
//   prompt=question            {"prompt": "question"}

#ifndef QLORA_RUNTIME_OPTIONS_DATAVALUES_H
#define QLORA_RUNTIME_OPTIONS_DATAVALUES_H

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// An input, and how often each of its rows occurs in an epoch.
struct WeightedPath {
  std::string path;
  double weight = 1;
};

/// Parses a path, or a list of paths or of {path, weight}. Call resolvedPaths()
/// for the canonical value.
StatusOr<nlohmann::ordered_json> parsePaths(const nlohmann::ordered_json &raw);

/// Returns the canonical value of parsed paths, with relative paths resolved in
/// `folder`. The text after the last colon of a path is a weight, unless a file
/// with that complete name exists.
StatusOr<nlohmann::ordered_json>
resolvedPaths(const nlohmann::ordered_json &parsed, const std::string &folder);

/// Concatenates the inputs of two canonical values.
nlohmann::ordered_json joinedPaths(const nlohmann::ordered_json &earlier,
                                   const nlohmann::ordered_json &later);

/// Converts a canonical value to a list of inputs.
std::vector<WeightedPath> weightedPaths(const nlohmann::ordered_json &value);

/// Parses a map from names to texts: {a: b}, `a=b,c=d` or a list of `a=b`.
StatusOr<nlohmann::ordered_json>
parseTextMap(const nlohmann::ordered_json &raw);

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_DATAVALUES_H
