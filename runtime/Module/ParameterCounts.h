// SPDX-License-Identifier: MIT

// How many numbers a model has and how many of them are trained, as the tools
// and the report say it. Filled from a module's parameter table or from the
// ops that it is made of.

#ifndef QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H
#define QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/ABI/module.h"

namespace qlora {

struct ParameterCounts {
  uint64_t base = 0;      ///< of the model itself
  uint64_t adapters = 0;  ///< of LoRA alone
  uint64_t trainable = 0; ///< these, and modules_to_save

  /// One parameter, `role` of enum qlora_role; the numbers it has.
  uint64_t add(uint32_t role, std::span<const int64_t> shape) {
    uint64_t elements = 1;
    for (int64_t extent : shape)
      elements *= static_cast<uint64_t>(extent);
    (role == QLORA_ROLE_ADAPTER ? adapters : base) += elements;
    if (role != QLORA_ROLE_FROZEN)
      trainable += elements;
    return elements;
  }

  /// In percent, and PEFT's: of all numbers, adapters included.
  double trainableShare() const {
    const uint64_t all = std::max<uint64_t>(base + adapters, 1);
    return 100 * static_cast<double>(trainable) / static_cast<double>(all);
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_PARAMETERCOUNTS_H
