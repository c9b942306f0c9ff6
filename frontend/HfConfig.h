// SPDX-License-Identifier: MIT

// config.json of a Hugging Face model folder, understood: every default
// filled in as transformers does, every value checked, and every key that
// means arithmetic which is not supported refused by name.

#ifndef QLORA_FRONTEND_HFCONFIG_H
#define QLORA_FRONTEND_HFCONFIG_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/Families.h"
#include "frontend/Rope.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// A decoder, in numbers. All counts are above 0, kvHeads divides heads, and
/// headDim is even.
struct ModelConfig {
  const Family *family = nullptr;
  int64_t vocabSize = 0;
  int64_t hiddenSize = 0;
  int64_t intermediateSize = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kvHeads = 0;
  int64_t headDim = 0;
  int64_t maxPositions = 0; ///< 0: config.json does not say
  double rmsNormEpsilon = 0;
  bool tied = false;
  bool qkvBias = false;
  bool outputBias = false; ///< of the attention
  bool mlpBias = false;
  RopeConfig rope;
  std::vector<float> frequencies; ///< headDim/2, of RoPE
  std::vector<int64_t> windows;   ///< by layer; 0: the whole past
  /// bitsandbytes has quantised the linears, but for those modules.
  bool quantized = false;
  std::vector<std::string> unquantizedModules;
  /// One line each, for the user.
  std::vector<std::string> warnings;
};

/// Reads FOLDER/config.json.
StatusOr<ModelConfig> readHfConfig(const std::string &folder);

/// The same from its text.
StatusOr<ModelConfig> parseHfConfig(std::string_view text);

} // namespace qlora

#endif // QLORA_FRONTEND_HFCONFIG_H
