// SPDX-License-Identifier: MIT

// A tensor of a model's files.

#ifndef QLORA_FRONTEND_WEIGHT_H
#define QLORA_FRONTEND_WEIGHT_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// One weight in the files. `shape` is the decoded shape, even if the file
/// packs values into fewer bits.
struct Weight {
  std::string name;
  std::string file; ///< base name
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
  std::optional<StoredLayout> stored; ///< if quantized
};

} // namespace qlora

#endif // QLORA_FRONTEND_WEIGHT_H
