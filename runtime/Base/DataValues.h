// SPDX-License-Identifier: MIT

// Option values that describe data: inputs with weights, and names of columns.
// Their canonical form is JSON, as for all options:
//
//   a.jsonl                    "/here/a.jsonl"
//   a.jsonl:2, b.jsonl         [{"path": "/here/a.jsonl", "weight": 2},
//                               {"path": "/here/b.jsonl", "weight": 1}]
//   prompt=question            {"prompt": "question"}

#ifndef QLORA_RUNTIME_BASE_DATAVALUES_H
#define QLORA_RUNTIME_BASE_DATAVALUES_H

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

/// Parses a path, a list of paths or of {path, weight}; checks them, but does
/// not resolve them yet.
StatusOr<nlohmann::ordered_json> parsePaths(const nlohmann::ordered_json &raw);

/// Returns the canonical value for `folder`. The text after the last colon is a
/// weight, unless a file of the whole name exists.
StatusOr<nlohmann::ordered_json>
resolvedPaths(const nlohmann::ordered_json &parsed, const std::string &folder);

/// Joins two canonical values.
nlohmann::ordered_json joinedPaths(const nlohmann::ordered_json &earlier,
                                   const nlohmann::ordered_json &later);

/// Converts a canonical value.
std::vector<WeightedPath> weightedPaths(const nlohmann::ordered_json &value);

/// Parses a map of texts, `a=b,c=d` or a list of `a=b`.
StatusOr<nlohmann::ordered_json>
parseTextMap(const nlohmann::ordered_json &raw);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_DATAVALUES_H
