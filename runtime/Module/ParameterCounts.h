// SPDX-License-Identifier: MIT

// How many numbers a model has and how many of them are trained, as the tools
// and the report say it. Filled from a module's parameter table or from the
// ops that it is made of.

#ifndef QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H
#define QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Of enum qlora_role: a tensor that training changes, and not a state of one.
inline bool isTrained(uint32_t role) {
  return role == QLORA_ROLE_ADAPTER || role == QLORA_ROLE_TRAINABLE;
}

struct ParameterCounts {
  uint64_t base = 0;      ///< of the model itself
  uint64_t adapters = 0;  ///< of LoRA alone
  uint64_t trainable = 0; ///< these, and modules_to_save

  /// One parameter, `role` of enum qlora_role; the numbers it has.
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

  /// One of a module; a slice counts as all of its tensor.
  uint64_t add(const qlora_parameter &parameter) {
    return add(parameter.role, wholeShapeOf(parameter));
  }

  /// In percent, and PEFT's: of all numbers, adapters included.
  double trainableShare() const {
    const uint64_t all = std::max<uint64_t>(base + adapters, 1);
    return 100 * static_cast<double>(trainable) / static_cast<double>(all);
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H
