// SPDX-License-Identifier: MIT

// A function of a library that is open, for the tables of CudaApi.h and
// NcclApi.h.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_FINDSYMBOL_H
#define QLORA_RUNTIME_KERNELS_CUDA_FINDSYMBOL_H

#include <dlfcn.h>

#include "runtime/Base/Status.h"

namespace qlora {

/// kUnavailable names the file and the symbol that it lacks.
template <typename Function>
Status findSymbol(void *library, const char *file, const char *symbol,
                  Function &function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (!function)
    return Status::error(StatusCode::kUnavailable, "{} has no {}; update it",
                         file, symbol);
  return Status::ok();
}

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_FINDSYMBOL_H
