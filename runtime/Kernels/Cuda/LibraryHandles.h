// SPDX-License-Identifier: MIT

// Handles of cuBLASLt and cuDNN for the context that is current when they are
// made: where a module has library kernels, and where a kernel asks.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_LIBRARYHANDLES_H
#define QLORA_RUNTIME_KERNELS_CUDA_LIBRARYHANDLES_H

#include <optional>

#include "runtime/Kernels/Cuda/CudaApi.h"

namespace qlora {

/// Of `Library`, which opens, creates and destroys. Empty until create().
template <typename Library, typename Handle> class LibraryHandle {
public:
  LibraryHandle() = default;
  LibraryHandle(const LibraryHandle &) = delete;
  LibraryHandle &operator=(const LibraryHandle &) = delete;
  ~LibraryHandle() {
    if (handle)
      (void)library->destroy(handle);
  }

  Status create() {
    QLORA_ASSIGN_OR_RETURN(library, Library::open());
    return library->check(library->create(&handle), Library::kCreate);
  }
  /// Itself, made at the first call; the same refusal at every call.
  StatusOr<const LibraryHandle *> get() {
    if (!made)
      made = create();
    QLORA_RETURN_IF_ERROR(*made);
    return this;
  }

  const Library *library = nullptr;
  Handle handle = nullptr;

private:
  std::optional<Status> made;
};

using CublasHandle = LibraryHandle<CublasLt, cublasLtHandle_t>;
using CudnnHandle = LibraryHandle<Cudnn, cudnnHandle_t>;

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_LIBRARYHANDLES_H
