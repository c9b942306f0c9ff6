// SPDX-License-Identifier: MIT

// The model families, one row each. A row says what a family does that its
// config.json does not: which linears have a bias, whether q and k are
// normalised, which keys make attention slide. What the rows share is in
// DecoderWeights.cpp (the names of the tensors) and DecoderBuilder.cpp (the
// order of the ops).

#ifndef QLORA_FRONTEND_FAMILIES_H
#define QLORA_FRONTEND_FAMILIES_H

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace qlora {

/// Which of the attention's linears have a bias.
enum class AttentionBias {
  kNone,
  kQkv,   ///< q, k and v always, o never; no key says so
  kByKey, ///< all four if `attention_bias` is true
};

/// Which layers see only a window of the past.
enum class WindowRule {
  kNone,     ///< none; a `sliding_window` key is refused
  kAll,      ///< all, if `sliding_window` is a number
  kByLayers, ///< `layer_types`, or else layers from `max_window_layers` on,
             ///< and only if `use_sliding_window`
};

/// One family. Defaults are those of transformers for a missing key; 0 means
/// "computed from other keys".
struct Family {
  std::string_view architecture; ///< in `architectures`
  std::string_view modelType;    ///< `model_type`
  AttentionBias attentionBias;
  bool mlpBiasKey; ///< `mlp_bias` is a key of this family
  bool qkNorm;     ///< an rms_norm by head on q and k, before RoPE
  WindowRule window;
  int64_t defaultKvHeads;
  int64_t defaultHeadDim;
  int64_t defaultWindow; ///< where `sliding_window` is missing, not null
  double defaultRmsNormEpsilon;
  bool defaultTied; ///< `tie_word_embeddings`
};

std::span<const Family> families();

/// nullptr when there is none.
const Family *findArchitecture(std::string_view architecture);
const Family *findModelType(std::string_view modelType);

/// "LlamaForCausalLM, MistralForCausalLM, ...", for messages.
std::string familyNames();

} // namespace qlora

#endif // QLORA_FRONTEND_FAMILIES_H
