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

const char *ropeKindName(RopeKind kind);

/// True if the frequencies depend on the sequence length.
constexpr bool dependsOnLength(RopeKind kind) {
  return kind == RopeKind::kDynamic || kind == RopeKind::kLongRope;
}

/// Fields that a kind does not use keep their defaults.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int64_t rotated = 0; ///< columns of a head that rotate, an even number
  double factor = 1.0;
  double attentionFactor = 1.0; ///< factor of cos and sin
  double lowFreqFactor = 1.0;
  double highFreqFactor = 4.0;
  double betaFast = 32.0, betaSlow = 1.0; ///< yarn: rotations per context
  bool truncate = true; ///< yarn: the ramp's ends are rounded to whole columns
  /// longrope: rotated/2 factors each. shortFactors apply to sequences of up to
  /// originalMaxPositions tokens, longFactors to longer ones.
  std::vector<double> shortFactors, longFactors;
  int64_t originalMaxPositions = 0;
};

/// Returns the rotated/2 inverse frequencies, for dynamic and longrope those of
/// sequences of at most originalMaxPositions tokens. Rounds each operation to
/// float32 in transformers' order. Results may differ from PyTorch's by 1 ulp,
/// because PyTorch does not use the C library's `pow`.
std::vector<float> inverseFrequencies(const RopeConfig &rope);

/// Returns longrope's frequencies for sequences of more than
/// originalMaxPositions tokens. Empty for all other kinds.
std::vector<float> longFrequencies(const RopeConfig &rope);

/// The head size, and the family's values for missing keys.
struct RopeDefaults {
  int64_t headDim = 0;
  double theta = 10000.0;
  /// `partial_rotary_factor`; 0: the key must be missing or 1.
  double partialRotary = 0;
};

/// Reads either spelling of config.json: `rope_theta` and `rope_scaling`, or
/// `rope_parameters`. Refuses kinds that RopeKind lacks. Adds a warning for
/// each key that the kind does not use.
StatusOr<RopeConfig> readRopeConfig(const nlohmann::json &config,
                                    const RopeDefaults &defaults,
                                    std::vector<std::string> &warnings);

} // namespace qlora

#endif // QLORA_FRONTEND_ROPE_H
