// SPDX-License-Identifier: MIT

// Writes a merged model as a Hugging Face folder: safetensors in shards, their
// index, config.json, and the files of the tokenizer and of generation. Weights
// stream: a window of a tensor at a time, or one quantized weight.

#ifndef QLORA_RUNTIME_EXPORT_MERGEDFOLDER_H
#define QLORA_RUNTIME_EXPORT_MERGEDFOLDER_H

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Progress.h"
#include "runtime/Base/Status.h"
#include "runtime/Export/MergedModel.h"
#include "runtime/Export/QuantizedWeights.h"

namespace qlora {

/// Type of the weights. Not set: MergedTensor::dtype of each.
using WeightType = std::optional<SafetensorsDtype>;

/// A tensor of a file: a merged tensor, or a part of a quantized one.
struct ShardTensor {
  const MergedTensor *of;
  std::string name;
  SafetensorsDtype dtype;
  std::vector<int64_t> shape;
  uint64_t bytes;
  std::optional<size_t> part = {}; ///< index in QuantizedWeight::parts()
};

/// A file of weights, and its tensors in the order of the file.
struct Shard {
  std::string name;
  std::vector<ShardTensor> tensors;
  uint64_t bytes = 0; ///< of the tensors
};

/// Fills `out` with values of a tensor from element `first` on.
using ReadTensor = std::function<Status(int64_t first, std::span<float> out)>;

struct MergedFolderRequest {
  WeightType type;
  uint64_t mostShardBytes = 0;
  /// Folder whose tokenizer and chat template are used if it has them: the
  /// adapter's. Else the base's are.
  std::string tokenizer;
  ProgressListener progress; ///< receives bytes; may be empty
  /// Opens the values of a weight; empty: MergedModel::values().
  std::function<StatusOr<ReadTensor>(const MergedTensor &)> open = {};
  /// Weights that are written quantized, from MergedModel::values(); null:
  /// none.
  const WeightQuantization *quantization = nullptr;
};

/// Distributes the tensors over files of at most mostShardBytes, in the order
/// of their names. A larger tensor, or a quantized weight, gets a file of its
/// own.
std::vector<Shard> planShards(const MergedModel &model,
                              const MergedFolderRequest &request);

/// Returns an upper bound of the memory for writing, without the process.
uint64_t mergedPeakBytes(const MergedModel &model,
                         const WeightQuantization *quantization = nullptr);

/// Writes the folder, which exists and is empty. Returns kResourceExhausted if
/// the disk is too small, and kInvalidArgument, with the tensor's name, for a
/// value that the type cannot hold.
Status writeMergedFolder(const MergedModel &model, const std::string &folder,
                         const MergedFolderRequest &request);

/// Copies the settings of generation from the folder `base`, and the files of
/// the tokenizer as MergedFolderRequest says. Returns whether there is a
/// tokenizer.
StatusOr<bool> copyTextFiles(const std::string &base,
                             const std::string &tokenizer,
                             const std::string &folder);

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_MERGEDFOLDER_H
