// SPDX-License-Identifier: MIT

// Counts a model's parameters and the trainable ones, for the tools and the
// report. The source is a module's parameter table or the ops of its program.

#ifndef QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H
#define QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Whether training changes the tensor; false for optimizer states.
inline bool isTrained(uint32_t role) {
  return role == QLORA_ROLE_ADAPTER || role == QLORA_ROLE_TRAINABLE;
}

struct ParameterCounts {
  uint64_t base = 0;      ///< parameters of the model, without adapters
  uint64_t adapters = 0;  ///< parameters of LoRA adapters
  uint64_t trainable = 0; ///< all trained parameters: adapters, modules_to_save

  /// Adds a parameter of `role` (enum qlora_role); returns its element count.
  uint64_t add(uint32_t role, std::span<const int64_t> shape) {
    uint64_t elements = 1;
    for (int64_t extent : shape)
      elements *= static_cast<uint64_t>(extent);
    if (role == QLORA_ROLE_STATE)
      return elements;
    (role == QLORA_ROLE_ADAPTER ? adapters : base) += elements;
    if (isTrained(role))
      trainable += elements;
    return elements;
  }

  /// Adds a parameter of a module; a slice counts as its whole tensor.
  uint64_t add(const qlora_parameter &parameter) {
    return add(parameter.role, wholeShapeOf(parameter));
  }

  /// Percent of all parameters including adapters, as PEFT counts.
  double trainableShare() const {
    const uint64_t all = std::max<uint64_t>(base + adapters, 1);
    return 100 * static_cast<double>(trainable) / static_cast<double>(all);
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H
