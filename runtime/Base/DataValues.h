// SPDX-License-Identifier: MIT

// Values of options that say what the data is: inputs with weights, and names
// for columns. Their canonical form is JSON as all options have it:
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

/// An input, and how often each of its rows comes in an epoch.
struct WeightedPath {
  std::string path;
  double weight = 1;
};

/// A path as it was written, a list of them or of {path, weight}: checked, and
/// not yet canonical.
StatusOr<nlohmann::ordered_json> parsePaths(const nlohmann::ordered_json &raw);

/// What that means in `folder`. Behind the last colon there is a weight, unless
/// there is a file of the whole name.
StatusOr<nlohmann::ordered_json>
resolvedPaths(const nlohmann::ordered_json &parsed, const std::string &folder);

/// Two canonical values as one.
nlohmann::ordered_json joinedPaths(const nlohmann::ordered_json &earlier,
                                   const nlohmann::ordered_json &later);

/// Of a canonical value.
std::vector<WeightedPath> weightedPaths(const nlohmann::ordered_json &value);

/// A map of texts, `a=b,c=d` or a list of `a=b`.
StatusOr<nlohmann::ordered_json>
parseTextMap(const nlohmann::ordered_json &raw);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_DATAVALUES_H
