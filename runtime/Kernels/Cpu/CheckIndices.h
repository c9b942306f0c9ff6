// SPDX-License-Identifier: MIT

// Checks indices that the kernels of experts read from data.

#ifndef QLORA_RUNTIME_KERNELS_CPU_CHECKINDICES_H
#define QLORA_RUNTIME_KERNELS_CPU_CHECKINDICES_H

#include <cstdint>

#include "runtime/Base/Status.h"

namespace qlora {

/// Checks that indices, which an earlier kernel wrote, are in [least, limit).
/// They are indices of rows, experts or choices.
inline Status checkIndices(const char *op, const int32_t *indices,
                           int64_t count, int64_t limit, int64_t least = 0) {
  for (int64_t i = 0; i < count; ++i)
    if (indices[i] < least || indices[i] >= limit)
      return Status::error(StatusCode::kInternal,
                           "{}: index {} is {}, not below {}", op, i,
                           indices[i], limit);
  return Status::ok();
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_CHECKINDICES_H
