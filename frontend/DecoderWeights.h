// SPDX-License-Identifier: MIT

// Finds the tensor of each weight of a decoder in the model files. Each tensor
// must exist, with the shape that config.json implies, in a supported type. The
// only tensors whose contents are read are bitsandbytes' quant_state (a few
// bytes of JSON), GPTQ's g_idx, and biases that GPTQ files may have added.

#ifndef QLORA_FRONTEND_DECODERWEIGHTS_H
#define QLORA_FRONTEND_DECODERWEIGHTS_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "frontend/HfConfig.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

struct LinearWeight {
  std::string module; ///< "model.layers.0.self_attn.q_proj"
  LinearLayout layout = LinearLayout::kOutIn; ///< of the stored weight
  Weight weight;
  std::optional<Weight> bias;

  int64_t outputs() const {
    return weight.shape[layout == LinearLayout::kOutIn ? 0 : 1];
  }
};

struct NormWeight {
  std::string module;
  Weight weight;
  std::optional<Weight> bias;
};

/// Norms that the family does not have are nullopt.
struct LayerWeights {
  std::optional<NormWeight> inputNorm;
  std::vector<LinearWeight> queryKeyValue; ///< q, k and v, or one for all three
  std::optional<NormWeight> queryNorm, keyNorm;
  std::optional<Weight> sinks; ///< [heads]
  LinearWeight attentionOutput;
  std::optional<NormWeight> attentionNorm; ///< of attention's output
  std::optional<NormWeight> mlpNorm;
  std::vector<LinearWeight> mlpInput; ///< gate and up, or up
  LinearWeight mlpOutput;
  /// Experts instead of the MLP. Without sharedGate, the MLP's fields are then
  /// empty. With sharedGate, they describe the shared expert.
  std::optional<ExpertWeights> experts;
  std::optional<LinearWeight> sharedGate;
  std::optional<NormWeight> mlpOutputNorm; ///< of the MLP's output
};

struct DecoderWeights {
  Weight embedding;
  std::optional<Weight> positions; ///< table of learned positions
  std::vector<LayerWeights> layers;
  NormWeight norm;
  std::optional<Weight> head; ///< if not set, the embedding is the LM head
};

/// Finds every weight. A tensor that is missing, has the wrong shape or type,
/// or contradicts config.json is an error with file, name and both shapes. If
/// the files have unused tensors, appends a warning with their number.
StatusOr<DecoderWeights> findWeights(const ModelConfig &config,
                                     const ModelFiles &files,
                                     std::vector<std::string> &warnings);

} // namespace qlora

#endif // QLORA_FRONTEND_DECODERWEIGHTS_H
