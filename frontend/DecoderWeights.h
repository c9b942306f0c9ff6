// SPDX-License-Identifier: MIT

// Which tensor of the files is which weight of a decoder, checked: that it is
// there, with the shape that config.json implies, in a type that is read.
// Only headers are read, and the quant_state (a few bytes of JSON) of weights
// that bitsandbytes quantised to 4 bits.

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

/// A norm that the family does not have is not there.
struct LayerWeights {
  std::optional<NormWeight> inputNorm;
  std::vector<LinearWeight> queryKeyValue; ///< one each, or one for all
  std::optional<NormWeight> queryNorm, keyNorm;
  std::optional<Weight> sinks; ///< [heads]
  LinearWeight attentionOutput;
  std::optional<NormWeight> attentionNorm; ///< of what attention adds
  std::optional<NormWeight> mlpNorm;
  std::vector<LinearWeight> mlpInput; ///< gate and up, or up
  LinearWeight mlpOutput;
  /// In place of the MLP, which is left out; or with a gate, beside it.
  std::optional<ExpertWeights> experts;
  std::optional<LinearWeight> sharedGate;
  std::optional<NormWeight> mlpOutputNorm; ///< of what the MLP adds
};

struct DecoderWeights {
  Weight embedding;
  std::optional<Weight> positions; ///< learned ones
  std::vector<LayerWeights> layers;
  NormWeight norm;
  std::optional<Weight> head; ///< none: the embedding
};

/// Finds every weight. Missing, misshapen or oddly typed tensors, and
/// tensors that contradict config.json, are errors with file, name and both
/// shapes; tensors that no family uses are counted in `warnings`.
StatusOr<DecoderWeights> findWeights(const ModelConfig &config,
                                     const ModelFiles &files,
                                     std::vector<std::string> &warnings);

} // namespace qlora

#endif // QLORA_FRONTEND_DECODERWEIGHTS_H
