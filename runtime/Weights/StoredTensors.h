// SPDX-License-Identifier: MIT

// Weights that are quantized in their files: which tensors form a weight, and
// how their bytes become the layout of Math/Stored.h. A format is recognised by
// a tensor that no other format has (StoredTensors.cpp has a row for each). The
// other tensors of the weight are checked against each other.

#ifndef QLORA_RUNTIME_WEIGHTS_STOREDTENSORS_H
#define QLORA_RUNTIME_WEIGHTS_STOREDTENSORS_H

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

/// One tensor of a stored weight.
struct StoredPart {
  std::string name;
  /// Empty: any type, since the bytes may be a view in another type.
  std::optional<SafetensorsDtype> dtype;
  std::vector<int64_t> shape; ///< only the byte count matters for a view
  int64_t offset = -1;        ///< offset in the layout; -1: see `arrange`
  /// Changes the bytes of the file in place, or refuses them. `out` is the
  /// layout. If the tensor has no offset, only `arrange` writes it to `out`.
  std::function<Status(std::span<uint8_t> bytes, uint8_t *out)> arrange = {};
};

/// The layout of a stored weight, its shape and its tensors.
struct StoredDescription {
  StoredLayout layout;
  std::vector<int64_t> shape; ///< shape of the decoded weight
  std::vector<StoredPart> parts;
  float correction = 0; ///< correction of scales that are codes
};

/// Returns whether the files hold a weight in a stored format. False if the
/// weight is missing or not quantized.
bool isStoredWeight(const ModelFiles &model, std::string_view name);

/// Returns the name of the tensor with the weight's codes or values.
std::string storedTensorName(const ModelFiles &model, std::string_view name);

/// Describes a weight that has a stored format. Reads its small tensors, and
/// checks that every tensor exists and has the size that the others imply.
StatusOr<StoredDescription> describeStored(const ModelFiles &model,
                                           std::string_view name);

/// Copies the weight into `layout` at `out` (layout.bytes), with code book and
/// maps. First checks that format, block, double quantization and shape match
/// those that train.so was compiled for. The file may have the first dimension
/// of `shape` as two dimensions.
Status copyStored(const ModelFiles &model, std::string_view name,
                  std::span<const int64_t> shape, const StoredLayout &layout,
                  uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_STOREDTENSORS_H
