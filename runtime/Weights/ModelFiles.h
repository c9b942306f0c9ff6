// SPDX-License-Identifier: MIT

// The weights of a Hugging Face model folder as one set of named tensors:
// either model.safetensors or the shards of model.safetensors.index.json.
// open() reads only headers. It follows links, since the Hugging Face cache
// consists of links, but refuses a shard name with `/` or `..`.

#ifndef QLORA_RUNTIME_WEIGHTS_MODELFILES_H
#define QLORA_RUNTIME_WEIGHTS_MODELFILES_H

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// Returns the names that files may use for the tensor `name` of a text model.
/// `name` may be a prefix. For "model.norm.weight" the result has:
///
///   model.norm.weight                  in a text model
///   norm.weight                        in a base model without LM head
///   language_model.model.norm.weight   in a multimodal model
///   model.language_model.norm.weight   in a multimodal model
///
/// For "model.language_model.norm.weight" the result has the same names.
std::vector<std::string> spellings(std::string_view name);

class ModelFiles {
public:
  struct Entry {
    const SafetensorsFile *file;
    const SafetensorsTensor *tensor;
  };

  /// Opens every file. It is an error if a shard is missing, or if a tensor is
  /// not in the shard that the index lists. Ignores tensors that the index does
  /// not list. If both a single file and an index exist, uses the single file.
  static StatusOr<ModelFiles> open(const std::string &folder);

  const std::string &folder() const { return root; }
  /// Returns null pointers if no tensor has any of the spellings() of `name`.
  Entry find(std::string_view name) const;
  /// Returns the tensor, or an error that names the folder and its content.
  StatusOr<Entry> get(std::string_view name) const;

  /// Returns `quantization_config` of the folder's config.json as text; empty
  /// if there is none. Some formats need it in addition to their tensors.
  const std::string &quantization() const { return quantizationText; }
  /// Returns whether GPTQ zero points are stored minus 1 (not in gptq_v2).
  bool zeroPointsAreLess() const;

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
