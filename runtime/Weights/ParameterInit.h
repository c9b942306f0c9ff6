// SPDX-License-Identifier: MIT

// Initial values of trainable parameters that come from no file. The random
// generator is counter-based: element i of a parameter depends on (seed, name,
// i) alone, so every rank gets the same bits, in whatever order it fills.

#ifndef QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H
#define QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H

#include <cstdint>
#include <span>

#include "runtime/ABI/module.h"

namespace qlora {

/// Fills `out` (the parameter's elements from `first` on, f32) according to its
/// init kind: ZERO, KAIMING, GAUSSIAN or NORMAL. COMPUTED parameters get zeros.
void initParameter(const qlora_parameter &parameter, uint64_t seed,
                   uint64_t first, std::span<float> out);

/// Draws standard normal values from the random stream of `name`.
void drawNormal(uint64_t seed, const char *name, std::span<float> out);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H
