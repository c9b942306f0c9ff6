// SPDX-License-Identifier: MIT

// The weights of a Hugging Face model folder as one set of named tensors:
// either model.safetensors or the shards of model.safetensors.index.json.
// Only headers are read. Links are followed (the Hugging Face cache is made
// of them), but a shard name with `/` or `..` is refused.

#ifndef QLORA_RUNTIME_WEIGHTS_MODELFILES_H
#define QLORA_RUNTIME_WEIGHTS_MODELFILES_H

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// What files may call a tensor of a text model, given its name or how its name
/// starts: that; without the first part, as files of a base model alone have it
/// ("wte.weight" for "transformer.wte.weight"); inside of a model that reads
/// more than text, as transformers 4 and 5 write it. The name itself may be of
/// such a model ("model.language_model.norm.weight").
std::vector<std::string> spellings(std::string_view name);

class ModelFiles {
public:
  /// A tensor and the file it is in.
  struct Entry {
    const SafetensorsFile *file;
    const SafetensorsTensor *tensor;
  };

  /// Opens every file. A missing shard, and a tensor that the index places
  /// in a shard that lacks it, are errors naming both. Tensors of a shard
  /// that the index does not mention are left out. Where there are both a
  /// single file and an index, the single file is the model.
  static StatusOr<ModelFiles> open(const std::string &folder);

  const std::string &folder() const { return root; }
  /// nullptr file and tensor when there is none, under any of its spellings().
  Entry find(std::string_view name) const;
  /// As find(), with an error that names the folder and says what it holds.
  StatusOr<Entry> get(std::string_view name) const;

  /// `quantization_config` of the folder's config.json, which says what the
  /// tensors do not; as text, empty where there is none.
  const std::string &quantization() const { return quantizationText; }
  /// GPTQ's checkpoint_format: one less than they are, but for gptq_v2.
  bool zeroPointsAreLess() const;

  /// Every file by its base name.
  const std::map<std::string, SafetensorsFile, std::less<>> &all() const {
    return files;
  }
  /// All tensor names, sorted.
  std::vector<std::string> tensorNames() const;
  /// Base name of the file that holds a tensor.
  StatusOr<std::string> fileOf(std::string_view tensorName) const;

private:
  using Owners = std::map<std::string, std::string, std::less<>>;
  /// The entry of `owner` that find() means, or its end.
  Owners::const_iterator locate(std::string_view name) const;
  Status openSingle();
  Status openIndexed(const std::string &indexPath);

  void readQuantization();

  std::string root;
  std::string quantizationText;
  std::map<std::string, SafetensorsFile, std::less<>> files; ///< by base name
  Owners owner;                                              ///< tensor -> file
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_MODELFILES_H
