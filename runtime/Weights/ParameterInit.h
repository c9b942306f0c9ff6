// SPDX-License-Identifier: MIT

// Initial values of trainable parameters that no file has. The random generator
// is counter-based: element i of a parameter depends only on seed, name and i.
// So all ranks get the same bits, regardless of the order in which they fill.

#ifndef QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H
#define QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H

#include <cstdint>
#include <span>

#include "runtime/ABI/module.h"

namespace qlora {

/// Fills `out`, the parameter's f32 elements from index `first` on, according
/// to its init kind ZERO, KAIMING, GAUSSIAN or NORMAL. COMPUTED gives zeros.
void initParameter(const qlora_parameter &parameter, uint64_t seed,
                   uint64_t first, std::span<float> out);

/// Draws standard normal values from the random stream of `name`.
void drawNormal(uint64_t seed, const char *name, std::span<float> out);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_PARAMETERINIT_H
