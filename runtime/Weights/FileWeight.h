// SPDX-License-Identifier: MIT

// Floating-point weights in a model's files: one tensor, or several as one.

#ifndef QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H
#define QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H

#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

/// A floating-point tensor in a file.
struct FileWeight {
  const SafetensorsFile *file;
  const SafetensorsTensor *tensor;
  qlora_dtype dtype;

  /// Checks that the tensor is F32, BF16 or F16 with this shape. A tensor of
  /// three dimensions may have its first two joined in `shape`.
  static StatusOr<FileWeight> of(const SafetensorsFile &file,
                                 const SafetensorsTensor &tensor,
                                 std::span<const int64_t> shape);
  /// Finds the tensor of a model folder with this name, shape and type. Returns
  /// an error if `model` is null.
  static StatusOr<FileWeight> find(const ModelFiles *model, const char *name,
                                   std::span<const int64_t> shape,
                                   qlora_dtype expected);

  /// Reads elements from `first` on with all threads of this process: one
  /// thread cannot read at the speed of memory.
  Status read(int64_t first, std::span<uint8_t> out) const;
};

/// The tensors of a parameter: its `parts` (ABI/module.h), or one tensor.
struct StackedFileWeight {
  std::vector<FileWeight> parts;
  int64_t partElements; ///< elements of each of the tensors

  qlora_dtype dtype() const { return parts.front().dtype; }

  static StatusOr<StackedFileWeight> find(const ModelFiles *model,
                                          const qlora_parameter &parameter);
  /// Reads elements as if the tensors were one.
  Status read(int64_t first, std::span<uint8_t> out) const;
};

/// Returns the names of a parameter's tensors in files: one, or its `parts`.
std::vector<const char *> fileNamesOf(const qlora_parameter &parameter);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H
