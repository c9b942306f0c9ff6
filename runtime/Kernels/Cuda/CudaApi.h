// SPDX-License-Identifier: MIT

// NVIDIA's libraries as tables of functions, opened at run time. A machine
// without them gets one line that says what is missing and what brings it.
//
//   QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
//   QLORA_RETURN_IF_ERROR(driver->check(driver->init(0), "cuInit"));
//
// A table lives as long as the process. Thread-safe after open().

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDAAPI_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDAAPI_H

#include <dlfcn.h>

#include <optional>
#include <span>

#include "runtime/Base/Status.h"
#include "runtime/Kernels/Cuda/CudaTypes.h"
#include "runtime/Kernels/Cuda/CudnnTypes.h"

namespace qlora {

/// A function of a library that is open. kUnavailable names the file and the symbol that it lacks.
template <typename Function>
Status findSymbol(void *library, const char *file, const char *symbol,
                  Function &function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (!function)
    return Status::error(StatusCode::kUnavailable, "{} has no {}; update it",
                         file, symbol);
  return Status::ok();
}

/// libcuda.so.1, of CUDA 12.0 or later.
struct CudaDriver {
  /// kNotFound, in one line, if there is none; kUnavailable if it is too old or
  /// lacks a function.
  static StatusOr<const CudaDriver *> open();
  /// The same of another file, which stays open too. For tests.
  static StatusOr<CudaDriver> openFile(const char *file);

  /// "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" where
  /// `result` is an error. Out of memory is kResourceExhausted, what a capture
  /// does not allow kUnavailable, all else kInternal.
  Status check(CUresult result, const char *what) const;

#define QLORA_DRIVER(Name, Symbol, Parameters) CUresult(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

/// libcublasLt.so.13 or libcublasLt.so.12, of cuBLAS 12.0 or later.
struct CublasLt {
  static StatusOr<const CublasLt *> open();
  /// The files that a driver of this version can go with, the best first.
  static std::span<const char *const> filesFor(int driverVersion);
  /// The first of these files that there is, which stays open. For tests.
  static StatusOr<CublasLt> openFirst(std::span<const char *const> files);

  /// What cuBLASLt does not support is kUnavailable; no memory as above.
  Status check(cublasStatus_t status, const char *what) const;

  static constexpr const char *kCreate = "cublasLtCreate";
  uint64_t version = 0; ///< 10000 * major + 100 * minor + patch

#define QLORA_CUBLASLT(Name, Symbol, Parameters)                               \
  cublasStatus_t(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

/// libcudnn.so.9, of cuDNN 9.19 or later: the oldest whose plans for our
/// graphs were looked at. A machine without it uses our own kernels.
struct Cudnn {
  static StatusOr<const Cudnn *> open();
  /// The same of another file, which stays open too. For tests.
  static StatusOr<Cudnn> openFile(const char *file);

  /// Everything that cuDNN refuses is kUnavailable, with the first line
  /// of its own explanation; no memory is kResourceExhausted.
  Status check(cudnnStatus_t status, const char *what) const;

  static constexpr const char *kCreate = "cudnnCreate";
  size_t (*getVersion)(); ///< 10000 * major + 100 * minor + patch
  void (*getLastErrorString)(char *text, size_t size);
#define QLORA_CUDNN(Name, Symbol, Parameters) cudnnStatus_t(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

/// A handle for the context that is current when it is made, of `Library`,
/// which opens, creates and destroys. Empty until create().
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

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDAAPI_H
