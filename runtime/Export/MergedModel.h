// SPDX-License-Identifier: MIT

// A base model with an adapter merged into it, tensor by tensor, under the
// names of the base's Hugging Face folder. Values are computed when they are
// read, so a writer holds one window of one tensor at a time:
//
//   QLORA_ASSIGN_OR_RETURN(MergedModel model, MergedModel::open(request));
//   for (const MergedTensor &tensor : model.tensors()) {
//     QLORA_ASSIGN_OR_RETURN(TensorValues values, model.values(tensor));
//     QLORA_RETURN_IF_ERROR(values.read(first, window)); // f32, not rounded
//   }
//
// TensorChange.h says what an adapter does to a weight. The writer rounds the
// result, once.
//
// The base's values are those of its files; a weight that is quantized there is
// decoded. With MergeRequest::quantized, weights that a training quantized when
// it read them have the values that its kernels decoded.

#ifndef QLORA_RUNTIME_EXPORT_MERGEDMODEL_H
#define QLORA_RUNTIME_EXPORT_MERGEDMODEL_H

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/Base/Status.h"
#include "runtime/Export/AdapterChanges.h"
#include "runtime/Export/BaseValues.h"
#include "runtime/Export/TensorChange.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

struct MergeRequest {
  std::string base;    ///< model folder
  std::string adapter; ///< PEFT folder; empty: the base alone
  BaseForm form;       ///< of the base's unquantized weights
  /// A program whose runs quantize the base when they read it. Null: the values
  /// of the files. Must outlive the model.
  const LoadedModule *quantized = nullptr;
};

/// One tensor of the merged model.
struct MergedTensor {
  std::string name; ///< as in the base's files; of a decoded weight, "a.weight"
  std::vector<int64_t> shape;
  /// Type in a merged model of 16 bits: F32 if a model of 16 bits has it in
  /// F32, else MergedModel::dtype(). If it is none of F32, BF16 and F16, the
  /// tensor is not a weight, and is copied unchanged.
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  bool isAdapted = false;   ///< the adapter changes it
  bool isQuantized = false; ///< decoded: quantized in the files or by training

  bool isWeight() const;
  int64_t elementCount() const;
};

/// The values of one tensor. Holds what reading needs: the adapter's factors,
/// and the codes of a quantized weight. Must not outlive its MergedModel.
class TensorValues {
public:
  /// Fills `out` with elements from index `first` on, in row-major order and
  /// f32. Only for weights.
  Status read(int64_t first, std::span<float> out);

private:
  friend class MergedModel;
  std::shared_ptr<BaseValues> base;
  std::optional<AppliedChange> change; ///< empty: the base's values
};

class MergedModel {
public:
  /// Reads the headers of all files, and the adapter once. Errors name a tensor
  /// or a key: kInvalidArgument for an adapter that does not fit the base, that
  /// is not finite, or that cannot be merged.
  static StatusOr<MergedModel> open(const MergeRequest &request);

  /// Returns all tensors, sorted by name. A tied head is not among them, unless
  /// the adapter makes it differ from the embedding (isUntied()).
  const std::vector<MergedTensor> &tensors() const { return all; }
  /// Returns null if there is no such tensor.
  const MergedTensor *find(std::string_view name) const;

  StatusOr<TensorValues> values(const MergedTensor &tensor) const;
  /// Reads bytes of a tensor that is not a weight.
  Status readBytes(const MergedTensor &tensor, uint64_t firstByte,
                   std::span<uint8_t> out) const;

  const ModelFiles &base() const { return *files; }
  /// Returns the adapter's changes; null without an adapter.
  const AdapterChanges *changes() const { return adapter.get(); }
  /// Returns the base's config.json.
  const nlohmann::ordered_json &config() const { return baseConfig; }
  /// Returns the model's 16-bit type: config.json's, else BF16.
  SafetensorsDtype dtype() const { return type; }
  /// Whether config.json ties the head to the embedding, but the merged model
  /// has both. Its config.json must then say tie_word_embeddings false.
  bool isUntied() const { return !untied.empty(); }
  /// Returns an upper bound of the bytes that values() of a tensor hold.
  uint64_t peakBytes() const;
  /// Returns the bytes of the largest tensor in 16 bits.
  uint64_t largestBytes() const;

private:
  /// A weight that a program quantizes: its parameter, and the weight's number
  /// among the parameter's parts.
  struct QuantizedPart {
    const qlora_parameter *parameter;
    int64_t part;
  };
  using PackedByName =
      std::vector<std::pair<const qlora_parameter *,
                            std::shared_ptr<const PackedWeight>>>;

  Status readConfig();
  Status listTensors();
  void addTensor(const std::string &name, const std::vector<int64_t> &shape,
                 SafetensorsDtype dtype, bool isStored);
  bool isTurned(const std::vector<int64_t> &shape) const;
  void tieHead();
  void untieHead();
  Status applyAdapter(const MergeRequest &request);
  void findQuantized(const LoadedModule &program);
  StatusOr<BaseValues> baseOf(const MergedTensor &tensor) const;
  StatusOr<std::shared_ptr<const PackedWeight>>
  quantizedOf(const qlora_parameter &parameter) const;
  /// Returns the tensor of the files that has the base's values.
  const std::string &sourceOf(const std::string &name) const {
    return name == untied ? shared : name;
  }

  BaseForm form;
  std::shared_ptr<const ModelFiles> files;
  nlohmann::ordered_json baseConfig;
  SafetensorsDtype type = SafetensorsDtype::kBF16;
  std::vector<MergedTensor> all;
  /// Weights that are quantized in the files.
  std::map<std::string, uint64_t, std::less<>> packedBytes;
  std::string shared; ///< tensor of a tied embedding and head
  std::string other;  ///< the second of their names
  std::string untied; ///< `other`, if it becomes a tensor of its own
  std::shared_ptr<AdapterChanges> adapter; ///< null: none
  const LoadedModule *program = nullptr;
  std::map<std::string, QuantizedPart, std::less<>> quantized;
  /// The last two parameters that were quantized: expert by expert, files
  /// alternate between two.
  std::shared_ptr<PackedByName> recent = std::make_shared<PackedByName>();
};

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_MERGEDMODEL_H
