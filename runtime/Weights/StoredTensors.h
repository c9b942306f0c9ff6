// SPDX-License-Identifier: MIT

// A weight that its files hold in few bits: which tensors beside each other it
// is, and how their bytes become the one layout of Math/Stored.h. A format is
// known by a tensor that no other one has (StoredTensors.cpp has a row of
// each); the rest is checked by its parts.

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
  /// None: bytes that may be a view in another type.
  std::optional<SafetensorsDtype> dtype;
  std::vector<int64_t> shape; ///< of a view only the number of bytes counts
  int64_t offset = -1;        ///< in the layout; -1: read with the description
  /// Changes bytes as the file has them in place, or refuses them; `out`: of
  /// the layout, into which a part goes by this alone if it has no offset.
  std::function<Status(std::span<uint8_t> bytes, uint8_t *out)> arrange = {};
};

/// What a stored weight says of itself.
struct StoredDescription {
  StoredLayout layout;
  std::vector<int64_t> shape; ///< of the numbers
  std::vector<StoredPart> parts;
  float correction = 0; ///< of scales that are codes
};

/// Whether the files hold a weight in a stored format; not where its tensor is
/// plain numbers, or not there.
bool isStoredWeight(const ModelFiles &model, std::string_view name);

/// The tensor that the numbers of a weight are in: its own name, or another's.
std::string storedTensorName(const ModelFiles &model, std::string_view name);

/// Reads what is small, and checks that every part is there with the size that
/// the others imply. Only for a weight that has a stored format.
StatusOr<StoredDescription> describeStored(const ModelFiles &model,
                                           std::string_view name);

/// Copies the parts of the weight into `layout` at `out` (layout.bytes), code
/// book and maps included, after checking that format, block, double
/// quantisation and shape are those that train.so was compiled for. A leading
/// dimension of the file may be joined with the next one.
Status copyStored(const ModelFiles &model, std::string_view name,
                  std::span<const int64_t> shape, const StoredLayout &layout,
                  uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_STOREDTENSORS_H
