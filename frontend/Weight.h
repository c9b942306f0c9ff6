// SPDX-License-Identifier: MIT

// A tensor of a model's files.

#ifndef QLORA_FRONTEND_WEIGHT_H
#define QLORA_FRONTEND_WEIGHT_H

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// One stored weight. `shape` is that of the numbers, also where they are
/// packed in 4 bits.
struct Weight {
  std::string name;
  std::string file; ///< base name
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
  int64_t nf4Block = 0; ///< 0: not quantised
  bool doubleQuant = false;
};

} // namespace qlora

#endif // QLORA_FRONTEND_WEIGHT_H
