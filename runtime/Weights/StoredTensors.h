// SPDX-License-Identifier: MIT

// Weights that are quantized in their files. Describes which tensors form a
// weight, and how their bytes are arranged to the layout of Math/Stored.h. A
// format is recognised by a tensor name that no other format has (kReaders in
// StoredTensors.cpp). All tensors of a weight must match each other.

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

struct StoredPart {
  std::string name;
  /// Empty: the tensor may be a view of the bytes in any dtype.
  std::optional<SafetensorsDtype> dtype;
  std::vector<int64_t> shape; ///< only the byte count matters for a view
  int64_t offset = -1;        ///< offset in the layout; -1: see `arrange`
  /// Converts the tensor's `bytes`, or refuses them. If `offset` is set, they
  /// are in the layout at `offset`, and are changed in place. Otherwise they
  /// are a temporary copy, which is written into the layout at `out`.
  std::function<Status(std::span<uint8_t> bytes, uint8_t *out)> arrange = {};
};

/// The layout of a stored weight, its shape and its tensors.
struct StoredDescription {
  StoredLayout layout;
  std::vector<int64_t> shape; ///< shape of the decoded weight
  std::vector<StoredPart> parts;
  float correction = 0; ///< bitsandbytes' nested_offset, added to the scales
};

/// Returns the tensors of a weight in bitsandbytes' NF4 or FP4: first its
/// metadata of `stateBytes` bytes, then its codes. The codes have no dtype.
std::vector<StoredPart> blockParts(const std::string &weight,
                                   const StoredLayout &layout,
                                   int64_t stateBytes);
/// Returns the tensors of a weight [.., rows, columns] in MXFP4. `arrange`
/// converts between files and layout, in both directions.
std::vector<StoredPart> microscalingParts(const std::string &weight,
                                          const std::vector<int64_t> &shape,
                                          const StoredLayout &layout);

/// Returns whether the files hold a weight in a stored format. False if the
/// weight is missing or not quantized.
bool isStoredWeight(const ModelFiles &model, std::string_view name);

/// Returns the names of all weights that the files hold in a stored format,
/// sorted.
std::vector<std::string> storedWeights(const ModelFiles &model);

/// Returns the name of the tensor with the weight's codes, or its own name if
/// the weight is not quantized.
std::string storedTensorName(const ModelFiles &model, std::string_view name);

/// Describes a weight for which isStoredWeight() is true. Reads its metadata
/// tensor. Checks that every tensor exists, and that their sizes match.
StatusOr<StoredDescription> describeStored(const ModelFiles &model,
                                           std::string_view name);

/// Copies the weight to `out`, which has layout.bytes bytes, with its code book
/// and maps. First checks that format, block, double quantization and shape are
/// those that train.so was compiled for. The file may split the first dimension
/// of `shape` into two.
Status copyStored(const ModelFiles &model, std::string_view name,
                  std::span<const int64_t> shape, const StoredLayout &layout,
                  uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_STOREDTENSORS_H
