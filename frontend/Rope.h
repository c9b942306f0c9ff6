// SPDX-License-Identifier: MIT

// Rotary position embedding: which scaling a model uses, and its inverse
// frequencies.

#ifndef QLORA_FRONTEND_ROPE_H
#define QLORA_FRONTEND_ROPE_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

enum class RopeKind { kDefault, kLinear, kLlama3 };

/// As config.json spells it.
const char *ropeKindName(RopeKind kind);

/// The fields that a kind does not use keep their defaults.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double lowFreqFactor = 1.0;
  double highFreqFactor = 4.0;
  int64_t originalMaxPositions = 0;
};

/// The headDim/2 inverse frequencies, each operation rounded to float32 in
/// the order in which transformers does it, so that they differ from
/// PyTorch's by no more than its `pow` does from the C library's: 1 ulp.
/// headDim is even.
std::vector<float> inverseFrequencies(const RopeConfig &rope, int64_t headDim);

/// From config.json, in either spelling: `rope_theta` and `rope_scaling`, or
/// `rope_parameters`. Kinds other than those above, partial rotation and
/// parameters per layer type are refused by name; keys that the kind does
/// not use go to `warnings`.
StatusOr<RopeConfig> readRopeConfig(const nlohmann::json &config,
                                    std::vector<std::string> &warnings);

} // namespace qlora

#endif // QLORA_FRONTEND_ROPE_H
