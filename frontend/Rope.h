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

enum class RopeKind {
  kDefault,
  kLinear,
  kDynamic,
  kYarn,
  kLongRope,
  kLlama3,
};

/// As config.json spells it.
const char *ropeKindName(RopeKind kind);

/// Whether the frequencies follow the length of a row.
constexpr bool dependsOnLength(RopeKind kind) {
  return kind == RopeKind::kDynamic || kind == RopeKind::kLongRope;
}

/// The fields that a kind does not use keep their defaults.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int64_t rotated = 0; ///< columns of a head that turn, an even number
  double factor = 1.0;
  double attentionFactor = 1.0; ///< of cos and sin
  double lowFreqFactor = 1.0;
  double highFreqFactor = 4.0;
  double betaFast = 32.0, betaSlow = 1.0; ///< yarn's turns within the context
  bool truncate = true;                   ///< yarn's range to whole columns
  /// Of longrope: rotated/2 each, for lengths up to originalMaxPositions and
  /// for longer ones.
  std::vector<double> shortFactors, longFactors;
  int64_t originalMaxPositions = 0;
};

/// The rotated/2 inverse frequencies, each operation rounded to float32 in
/// the order in which transformers does it, so that they differ from
/// PyTorch's by no more than its `pow` does from the C library's: 1 ulp. Of
/// kinds that depend on the length (dynamic, longrope) those up to
/// originalMaxPositions.
std::vector<float> inverseFrequencies(const RopeConfig &rope);

/// longrope's for longer ones; else empty.
std::vector<float> longFrequencies(const RopeConfig &rope);

/// What config.json does not say.
struct RopeDefaults {
  int64_t headDim = 0;
  double theta = 10000.0;
  /// `partial_rotary_factor`; 0: it may not be there, unless it is 1.
  double partialRotary = 0;
};

/// From config.json, in either spelling: `rope_theta` and `rope_scaling`, or
/// `rope_parameters`. Kinds other than those above are refused by name; keys
/// that the kind does not use go to `warnings`.
StatusOr<RopeConfig> readRopeConfig(const nlohmann::json &config,
                                    const RopeDefaults &defaults,
                                    std::vector<std::string> &warnings);

} // namespace qlora

#endif // QLORA_FRONTEND_ROPE_H
