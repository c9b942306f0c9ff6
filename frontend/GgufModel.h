// SPDX-License-Identifier: MIT

// Describes a model as llama.cpp stores it: the keys that replace config.json,
// and each tensor of the GGUF file with the tensors of the Hugging Face folder
// that it is made of. Reads no values.

#ifndef QLORA_FRONTEND_GGUFMODEL_H
#define QLORA_FRONTEND_GGUFMODEL_H

#include <cstdint>
#include <string>
#include <vector>

#include "frontend/DecoderWeights.h"
#include "frontend/HfConfig.h"
#include "runtime/Base/Status.h"
#include "runtime/Gguf/GgufFile.h"
#include "runtime/Gguf/GgufMix.h"

namespace qlora {

/// How a tensor of the file is made. A matrix of the file is [out, in]. With
/// experts, a tensor has one matrix per expert.
struct GgufSource {
  GgufTensor tensor; ///< with its name and shape; the type is chosen later
  /// Tensors of the folder, whose matrices follow each other. Empty: `values`.
  /// Decoded weights have the layout of unquantized ones of the family.
  std::vector<std::string> parts;
  std::vector<float> values = {};
  bool isTransposed = false; ///< the folder has each matrix as [in, out]
  /// If not 0: the rows of each head, of this many rows, are reordered, so that
  /// row i of the upper half follows row i of the lower half.
  int64_t permutedHead = 0;
  /// The file has only rows `phase`, `phase` + `stride` and so on of each
  /// matrix in the folder.
  int64_t stride = 1, phase = 0;
  float factor = 1, addend = 0; ///< the file has value * factor + addend

  /// Values in the file that belong to one output: a row of a matrix, or one
  /// value of a bias or norm.
  int64_t rowValues() const;
  /// Outputs of one matrix, bias or norm in the file.
  int64_t matrixRows() const;
  /// Index of a row, of a matrix in the file, in the folder's matrix.
  int64_t storedRow(int64_t row) const;
};

struct GgufModel {
  std::string architecture;
  GgufMetadata keys; ///< `general.architecture`, and those named after it
  std::vector<GgufSource> sources;
  GgufMixModel mixModel;
  std::vector<std::string> warnings; ///< what llama.cpp computes differently
};

/// Describes the model. `untiedHead` names the LM head that an adapter has made
/// different from the embedding of a model with a tied head; else it is empty.
StatusOr<GgufModel> describeGguf(const ModelConfig &config,
                                 const DecoderWeights &weights,
                                 const std::string &untiedHead);

} // namespace qlora

#endif // QLORA_FRONTEND_GGUFMODEL_H
