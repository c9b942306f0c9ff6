// SPDX-License-Identifier: MIT

// What the kernels of experts ask of numbers that are data.

#ifndef QLORA_RUNTIME_KERNELS_CPU_CHECKINDICES_H
#define QLORA_RUNTIME_KERNELS_CPU_CHECKINDICES_H

#include <cstdint>

#include "runtime/Base/Status.h"

namespace qlora {

/// Numbers of rows, experts and choices, which come from a kernel before, are in
/// [0, limit).
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
