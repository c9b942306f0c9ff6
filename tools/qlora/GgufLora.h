// SPDX-License-Identifier: MIT

// A LoRA adapter as a GGUF file for llama.cpp. Each adapted tensor NAME of the
// base's GGUF file has two tensors:
//
//   NAME.lora_a  [rank, in]   of experts [n, rank, in], of the embedding [in,
//                             rank]
//   NAME.lora_b  [out, rank]  of experts [n, out, rank]
//
// llama.cpp scales all products by alpha / rank, with one alpha. So B is scaled
// where the module's own scale differs (rsLoRA, patterns). Its rows are
// reordered as those of the base's tensor. Experts of a lower rank get zeros.

#ifndef QLORA_TOOLS_QLORA_GGUFLORA_H
#define QLORA_TOOLS_QLORA_GGUFLORA_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "frontend/GgufModel.h"
#include "runtime/Base/Status.h"
#include "runtime/Export/AdapterChanges.h"
#include "runtime/Gguf/GgufFile.h"

namespace qlora {

class GgufLora {
public:
  /// Describes the file. `base` describes the base's file, with names of the
  /// merged model's tensors. Refuses changes that are not LoRA. All arguments
  /// must outlive the result.
  static StatusOr<GgufLora> plan(const GgufModel &base,
                                 const AdapterChanges &adapter, double alpha,
                                 GgufType type);

  /// Bytes of the file's tensors.
  uint64_t bytes() const;
  int64_t pairCount() const { return std::ssize(pairs); }
  /// Upper bound of the memory for writing.
  uint64_t peakBytes() const;
  /// Writes PATH. `name`: `general.name`.
  Status write(const std::string &path, const std::string &name);
  /// Returns the SHA-256 of the values of each tensor of the written file, as
  /// f32.
  StatusOr<std::map<std::string, std::string>> digests() const;

private:
  /// A matrix of the base's tensor: its change, and the expert's number in the
  /// change's factors. Null: not adapted.
  struct Matrix {
    const TensorChange *change = nullptr;
    int64_t expert = 0;
  };
  struct Pair {
    const GgufSource *of;
    std::vector<Matrix> matrices;
    int64_t rank = 0; ///< the largest
  };

  GgufLora(const GgufModel &base, const AdapterChanges &adapter, double alpha)
      : base(&base), adapter(&adapter), alpha(alpha) {}
  Status addPair(const GgufSource &source, GgufType type);
  GgufMetadata keys(const std::string &name) const;
  StatusOr<std::vector<float>> valuesOfA(const Pair &pair) const;
  StatusOr<std::vector<float>> valuesOfB(const Pair &pair) const;

  const GgufModel *base;
  const AdapterChanges *adapter;
  double alpha;
  std::vector<Pair> pairs;
  std::vector<GgufSource> files; ///< a and b of each pair
  std::string path;              ///< of the written file
  uint64_t dataStart = 0;
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_GGUFLORA_H
