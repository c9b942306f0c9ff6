// SPDX-License-Identifier: MIT

// Constant tables that tensors of a stored format need.

#ifndef QLORA_RUNTIME_KERNELS_STOREDTABLES_H
#define QLORA_RUNTIME_KERNELS_STOREDTABLES_H

#include "runtime/Kernels/Math/Stored.h"

namespace qlora {

/// Writes the tables of `layout` to `out`, a tensor's bytes: the values of all
/// codes, and the scale correction (0 with double quantization). If the
/// format's scales are codes of powers of two, also writes the values of these
/// codes, and 1 for all nested scales.
void writeTables(const StoredLayout &layout, uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_STOREDTABLES_H
