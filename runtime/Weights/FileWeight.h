// SPDX-License-Identifier: MIT

// Weights as the files of a model have them, in numbers: one tensor, or several
// that are one parameter.

#ifndef QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H
#define QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H

#include <span>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

/// A tensor of a file as numbers.
struct FileWeight {
  const SafetensorsFile *file;
  const SafetensorsTensor *tensor;
  qlora_dtype dtype;

  /// One of F32, BF16 or F16 with this shape, or of three dimensions where the
  /// first two are one of `shape`'s.
  static StatusOr<FileWeight> of(const SafetensorsFile &file,
                                 const SafetensorsTensor &tensor,
                                 std::span<const int64_t> shape);
  /// The tensor of a model folder with this name, shape and type; `model` may
  /// be null, which is an error that says so.
  static StatusOr<FileWeight> find(const ModelFiles *model, const char *name,
                                   std::span<const int64_t> shape,
                                   qlora_dtype expected);

  /// Elements from `first` on, on the threads of this process: one alone does
  /// not read as fast as memory does.
  Status read(int64_t first, std::span<uint8_t> out) const;
};

/// The tensors of a parameter that has `parts` (ABI/module.h), or its only one.
struct StackedFileWeight {
  std::vector<FileWeight> parts;
  int64_t partElements; ///< of each

  qlora_dtype dtype() const { return parts.front().dtype; }

  static StatusOr<StackedFileWeight> find(const ModelFiles *model,
                                          const qlora_parameter &parameter);
  /// As if they were one tensor.
  Status read(int64_t first, std::span<uint8_t> out) const;
};

/// The names of its tensors in the files: its own, or those of its parts.
std::vector<const char *> fileNamesOf(const qlora_parameter &parameter);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FILEWEIGHT_H
