// SPDX-License-Identifier: MIT

// What llama.cpp's architectures can compute, for the families that it has.
// The names are those of llama.cpp's files (gguf-py/gguf/constants.py and
// src/models/). A record says where an architecture differs from ours; names
// of tensors follow from the roles in DecoderWeights (GgufModel.cpp).

#ifndef QLORA_FRONTEND_GGUFFAMILIES_H
#define QLORA_FRONTEND_GGUFFAMILIES_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/HfConfig.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// What llama.cpp does with attention windows.
enum class GgufWindow {
  kIgnored,  ///< all layers see the whole context
  kPeriodic, ///< all but each `windowPeriod`-th layer have the window
};

/// Factors of attention scores that an architecture can have.
enum class GgufAttentionScale {
  kHeadDim, ///< 1 / sqrt(head size); another one is put into the weights of q
  kKey,     ///< the key `attention.scale`
};

struct GgufFamily {
  std::string_view modelType;    ///< Family::modelType
  std::string_view architecture; ///< llama.cpp's
  /// RoPE turns adjacent columns of q and k, so the rows of their weights are
  /// permuted; else it turns columns of the two halves of a head, as here.
  bool permutesHeads = false;
  bool hasOutputBias = false; ///< of the attention
  bool hasMlpBias = false;
  bool needsBiases = false; ///< refuses files without them
  /// Heads together have the model's width.
  bool hasFullHeads = false;
  bool canTieHead = true; ///< false: output.weight must exist
  bool mustTieHead = false;
  /// Whether expert weights of a token are normalized; only for experts.
  bool normalizesExperts = false;
  bool hasRopeFactors = false; ///< rope_freqs: a factor per column pair
  bool hasLongRope = false;
  bool namesExpertSize = false; ///< `expert_feed_forward_length`
  GgufWindow window = GgufWindow::kIgnored;
  int64_t windowPeriod = 0;
  /// The key of the window must exist, even for models without one.
  bool needsWindowKey = false;
  GgufAttentionScale attentionScale = GgufAttentionScale::kHeadDim;
  /// A model with that many layers (Gemma's 27B) has the attention scale
  /// 1 / sqrt(width / heads) instead; 0: none.
  int64_t wideScaleLayers = 0;
  std::string_view mlpNorm = "ffn_norm";
  std::string_view activation = "silu"; ///< a name of model.activation
  /// The ClampedGlu of experts; 0: a plain one.
  double gluLimit = 0, gluSlope = 1;
};

/// Returns the factor of q that gives llama.cpp's attention our scores.
double ggufQueryFactor(const GgufFamily &family, const ModelConfig &config);

/// Finds the record for a model, and refuses, by name, what its architecture
/// in llama.cpp cannot compute. Appends to `warnings` what llama.cpp ignores,
/// if that can change results.
StatusOr<const GgufFamily *> findGgufFamily(const ModelConfig &config,
                                            std::vector<std::string> &warnings);

} // namespace qlora

#endif // QLORA_FRONTEND_GGUFFAMILIES_H
