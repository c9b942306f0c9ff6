// SPDX-License-Identifier: MIT

// Initial values of trained parameters that come from no file. Randomness is
// counter-based: element i of a parameter depends on (seed, name, i) alone,
// so every rank gets the same bits in whatever order it fills.

#ifndef QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H
#define QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H

#include <cstdint>
#include <span>

#include "runtime/ABI/module.h"

namespace qlora {

/// Fills `out` (the parameter's elements from `first` on, f32) by its init kind:
/// ZERO, KAIMING, GAUSSIAN or NORMAL, with zeros where it is COMPUTED later.
void initParameter(const qlora_parameter &parameter, uint64_t seed,
                   uint64_t first, std::span<float> out);

/// Normal numbers of a stream that is `name`'s.
void drawNormal(uint64_t seed, const char *name, std::span<float> out);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H
