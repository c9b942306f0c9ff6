// SPDX-License-Identifier: MIT

// Weights of a merged model that are written quantized. Their f32 values are
// quantized once, with the quantizers of runtime/Kernels, so the codes are
// those that a base with these values gets when it is quantized on load. In
// files they have the form of the library that loads them:
//
//   NF4     bitsandbytes: weight, absmax, quant_map, quant_state, nested_*
//   FP8     compressed-tensors: weight, and weight_scale with a scale per row
//   MXFP4   gpt-oss: NAME_blocks and NAME_scales

#ifndef QLORA_RUNTIME_EXPORT_QUANTIZEDWEIGHTS_H
#define QLORA_RUNTIME_EXPORT_QUANTIZEDWEIGHTS_H

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/Status.h"
#include "runtime/Export/MergedModel.h"
#include "runtime/Weights/StoredTensors.h"

namespace qlora {

/// Which weights are quantized, and how.
struct WeightQuantization {
  const StoredFormat *format = nullptr;
  bool doubleQuant = false; ///< NF4: quantizes scales too
  /// Names of MergedModel's tensors. The value says whether the tensor is
  /// [.., in, out]. Quantized weights are always [.., out, in].
  std::map<std::string, bool, std::less<>> weights;
  nlohmann::ordered_json config; ///< quantization_config of config.json

  bool isQuantized(const MergedTensor &tensor) const {
    return weights.contains(tensor.name);
  }
};

/// One weight, with the tensors that it has in files.
class QuantizedWeight {
public:
  /// `type`: type of the model's other weights.
  QuantizedWeight(const WeightQuantization &how, const MergedTensor &tensor,
                  SafetensorsDtype type);

  /// Every part has a dtype. No part needs values.
  const std::vector<StoredPart> &parts() const { return all; }
  static uint64_t bytesOf(const StoredPart &part);
  const StoredLayout &layout() const { return form; }
  /// Returns an upper bound of the bytes that quantize() allocates, without
  /// those of MergedModel::values().
  uint64_t peakBytes() const;

  /// Computes the bytes of all parts. Returns kInvalidArgument for a value that
  /// is not finite.
  Status quantize(const MergedModel &model);
  bool isQuantized() const { return !packed.bytes().empty(); }
  /// Copies bytes of a part, from `firstByte` on, after quantize().
  void copy(size_t part, uint64_t firstByte, std::span<uint8_t> out) const;

private:
  std::string stateText(float offset) const;

  const MergedTensor *tensor;
  SafetensorsDtype type;
  bool isTurned;
  std::vector<int64_t> shape; ///< [.., out, in]
  StoredLayout form;
  std::vector<StoredPart> all;
  HostMemory packed; ///< the layout, with parts arranged as in files
  std::string state; ///< text of quant_state
};

/// Returns an upper bound of the bytes for quantizing one weight.
uint64_t quantizedPeakBytes(const MergedModel &model,
                            const WeightQuantization &how);

/// Returns the SHA-256 of each weight that a folder has quantized: of its
/// decoded f32 values, [.., out, in]. Keys are names of weights.
StatusOr<std::map<std::string, std::string>>
digestsOfDecoded(const std::string &folder);

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_QUANTIZEDWEIGHTS_H
