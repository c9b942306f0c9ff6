// SPDX-License-Identifier: MIT

// Floating-point weights in a model's files. Several tensors can form a weight.

#ifndef QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H
#define QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H

#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

struct FileWeight {
  const SafetensorsFile *file;
  const SafetensorsTensor *tensor;
  qlora_dtype dtype;

  /// Checks that the tensor is F32, BF16 or F16 with this shape. A tensor
  /// [n, rows, columns] also matches the shape [n * rows, columns].
  static StatusOr<FileWeight> of(const SafetensorsFile &file,
                                 const SafetensorsTensor &tensor,
                                 std::span<const int64_t> shape);
  /// Finds the tensor of a model folder with this name, shape and type. Returns
  /// an error if `model` is null.
  static StatusOr<FileWeight> find(const ModelFiles *model, const char *name,
                                   std::span<const int64_t> shape,
                                   qlora_dtype expected);

  /// Reads elements from index `first` on. Uses all threads of this process,
  /// because one thread cannot saturate the memory.
  Status read(int64_t first, std::span<uint8_t> out) const;
};

/// A parameter that consists of one tensor of the files, or of `parts` tensors
/// (ABI/module.h) that are joined along the first dimension.
struct StackedFileWeight {
  std::vector<FileWeight> parts;
  int64_t partElements; ///< elements of each of the tensors

  qlora_dtype dtype() const { return parts.front().dtype; }

  static StatusOr<StackedFileWeight> find(const ModelFiles *model,
                                          const qlora_parameter &parameter);
  /// Reads elements from index `first` of the joined tensors on.
  Status read(int64_t first, std::span<uint8_t> out) const;
};

/// Returns the names of a parameter's tensors in files: one, or its `parts`.
std::vector<const char *> fileNamesOf(const qlora_parameter &parameter);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H
