// SPDX-License-Identifier: MIT

// A PEFT adapter folder as changes to tensors of a base model. Every tensor of
// the adapter must belong to a tensor of the base. Names are PEFT's:
//
//   base_model.model.PATH.lora_A.weight, .lora_B.weight    LoRA of PATH.weight
//   base_model.model.PATH.lora_embedding_A, ..._B          of an embedding
//   base_model.model.PATH.lora_magnitude_vector            DoRA
//   base_model.model.PATH.lora_B.bias                      lora_bias
//   base_model.model.PATH.token_adapter.trainable_tokens_delta
//   base_model.model.PATH.experts[.base_layer].lora_A.weight   of parameters
//   base_model.model.PATH[.base_layer].weight, .bias       trained in full

#ifndef QLORA_RUNTIME_EXPORT_ADAPTERCHANGES_H
#define QLORA_RUNTIME_EXPORT_ADAPTERCHANGES_H

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Export/TensorChange.h"
#include "runtime/Options/Options.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// What a base's files do not say themselves.
struct BaseForm {
  bool linearsAreInOut = false; ///< weights are [in, out]: transformers' Conv1D
  bool expertsAreInOut = false; ///< experts in one tensor [n, in, out]
  /// Names of the weights of embedding and LM head, if both are one tensor.
  std::string tiedEmbedding, tiedHead;
  /// Paths in a layer whose names differ: transformers' path of a module, and
  /// the path in the files.
  std::vector<std::pair<std::string, std::string>> renamed;
  /// Names of gate, up and down of an expert with files of its own.
  std::array<std::string, 3> projections;
};

/// Shapes of a base's tensors, which an adapter may change, by name.
class BaseShapes {
public:
  explicit BaseShapes(const BaseForm &form) : renamed(form.renamed) {}
  void add(const std::string &name, const std::vector<int64_t> &shape) {
    all.emplace(name, shape);
  }
  /// Returns the base's name of a tensor, whichever of its spellings() it has;
  /// empty if the base has no such tensor.
  std::string resolve(const std::string &name) const;
  const std::vector<int64_t> &shapeOf(const std::string &name) const {
    return all.at(name);
  }

private:
  std::vector<std::pair<std::string, std::string>> renamed;
  std::map<std::string, std::vector<int64_t>> all;
};

struct AdapterChanges {
  SafetensorsFile file;
  std::map<std::string, TensorChange, std::less<>> changes; ///< by base name

  /// Reads the folder. Returns kInvalidArgument, with the tensor's name, if a
  /// tensor does not fit the base or is not finite, or for an adapter that
  /// cannot be merged. Reads all values of the adapter once.
  static StatusOr<AdapterChanges> read(const std::string &folder,
                                       const BaseShapes &base,
                                       const BaseForm &form);
};

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_ADAPTERCHANGES_H
