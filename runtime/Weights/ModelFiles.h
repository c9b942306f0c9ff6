// SPDX-License-Identifier: MIT

// The weights of a Hugging Face model folder as one set of named tensors:
// either model.safetensors or the shards of model.safetensors.index.json. Only
// headers are read. Links are followed, since the Hugging Face cache consists
// of them, but a shard name with `/` or `..` is refused.

#ifndef QLORA_RUNTIME_WEIGHTS_MODELFILES_H
#define QLORA_RUNTIME_WEIGHTS_MODELFILES_H

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// Returns the names that files may use for a tensor of a text model, given its
/// name or a prefix of it. These are the name itself; without its first
/// component, as in files of a base model alone ("wte.weight" for
/// "transformer.wte.weight"); and inside a multimodal model, as transformers 4
/// and 5 write it. The given name may already be of a multimodal model
/// ("model.language_model.norm.weight").
std::vector<std::string> spellings(std::string_view name);

class ModelFiles {
public:
  /// A tensor and the file it is in.
  struct Entry {
    const SafetensorsFile *file;
    const SafetensorsTensor *tensor;
  };

  /// Opens every file. A missing shard, and a tensor that is not in the shard
  /// given by the index, are errors that name both. Tensors of a shard that the
  /// index does not list are ignored. If there are both a single file and an
  /// index, the single file is used.
  static StatusOr<ModelFiles> open(const std::string &folder);

  const std::string &folder() const { return root; }
  /// Returns null pointers if no tensor has any of the spellings() of `name`.
  Entry find(std::string_view name) const;
  /// Returns the tensor, or an error that names the folder and its content.
  StatusOr<Entry> get(std::string_view name) const;

  /// Returns `quantization_config` of the folder's config.json as text; empty
  /// if there is none. It has properties that the tensors do not show.
  const std::string &quantization() const { return quantizationText; }
  /// Returns whether GPTQ zero points are stored minus 1: not in gptq_v2.
  bool zeroPointsAreLess() const;

  /// Returns every file, with its base name as key.
  const std::map<std::string, SafetensorsFile, std::less<>> &all() const {
    return files;
  }
  /// Returns all tensor names, sorted.
  std::vector<std::string> tensorNames() const;
  /// Returns the base name of the file that holds a tensor.
  StatusOr<std::string> fileOf(std::string_view tensorName) const;

private:
  using Owners = std::map<std::string, std::string, std::less<>>;
  /// Returns the entry of `owner` that find() uses, or owner.end().
  Owners::const_iterator locate(std::string_view name) const;
  Status openSingle();
  Status openIndexed(const std::string &indexPath);

  Status readQuantization();

  std::string root;
  std::string quantizationText;
  std::map<std::string, SafetensorsFile, std::less<>> files; ///< key: base name
  Owners owner;                                              ///< tensor -> file
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_MODELFILES_H
