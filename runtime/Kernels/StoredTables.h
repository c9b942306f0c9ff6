// SPDX-License-Identifier: MIT

// What every tensor of a stored format has beside its codes and scales.

#ifndef QLORA_RUNTIME_KERNELS_STOREDTABLES_H
#define QLORA_RUNTIME_KERNELS_STOREDTABLES_H

#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// Into a layout at `out`: the values of all codes, and the correction of scales
/// that are not codes, 0 for the others; where scales are always codes, the
/// powers of two that they are.
void writeTables(const StoredLayout &layout, uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_STOREDTABLES_H
