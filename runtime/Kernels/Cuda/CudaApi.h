// SPDX-License-Identifier: MIT

// NVIDIA's libraries as tables of functions, opened at run time. If a library
// is missing, open() returns an error that says how to install it.
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

/// Looks up a function in an open library. Returns kUnavailable with the file
/// and the symbol if the function is missing.
template <typename Function>
Status findSymbol(void *library, const char *file, const char *symbol,
                  Function &function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (!function)
    return Status::unavailable("{} has no {}; update it", file, symbol);
  return Status::ok();
}

/// libcuda.so.1, of CUDA 12.0 or later.
struct CudaDriver {
  /// Opens the driver. Returns kNotFound, with a one-line message, if there is
  /// no driver, and kUnavailable if the driver is too old or lacks a function.
  static StatusOr<const CudaDriver *> open();
  /// Like open(), but opens `file`, and never closes it. For tests.
  static StatusOr<CudaDriver> openFile(const char *file);

  /// Formats an error like "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of
  /// memory". The code is kResourceExhausted for out of memory, kUnavailable
  /// for calls that a capture forbids, otherwise kInternal.
  Status check(CUresult result, const char *what) const;

#define QLORA_DRIVER(Name, Symbol, Parameters) CUresult(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

/// libcublasLt.so.13 or libcublasLt.so.12, of cuBLAS 12.0 or later.
struct CublasLt {
  static StatusOr<const CublasLt *> open();
  /// Returns the files that work with this driver version, best first.
  static std::span<const char *const> filesFor(int driverVersion);
  /// Opens the first of `files` that exists, and keeps it open. For tests.
  static StatusOr<CublasLt> openFirst(std::span<const char *const> files);

  /// Returns kUnavailable if cuBLASLt does not support the call,
  /// kResourceExhausted if there is no memory.
  Status check(cublasStatus_t status, const char *what) const;

  static constexpr const char *kCreate = "cublasLtCreate";
  uint64_t version = 0; ///< 10000 * major + 100 * minor + patch

#define QLORA_CUBLASLT(Name, Symbol, Parameters)                               \
  cublasStatus_t(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

/// libcudnn.so.9, of cuDNN 9.19 or later. The attention plans of older versions
/// were not examined. Without cuDNN, this project's kernels run.
struct Cudnn {
  static StatusOr<const Cudnn *> open();
  /// Like open(), but opens `file`, and never closes it. For tests.
  static StatusOr<Cudnn> openFile(const char *file);

  /// Returns kResourceExhausted if there is no memory, kUnavailable for any
  /// other error, with the first line of cuDNN's message.
  Status check(cudnnStatus_t status, const char *what) const;

  static constexpr const char *kCreate = "cudnnCreate";
  size_t (*getVersion)(); ///< 10000 * major + 100 * minor + patch
  void (*getLastErrorString)(char *text, size_t size);
#define QLORA_CUDNN(Name, Symbol, Parameters) cudnnStatus_t(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
};

/// A library handle for the context that is current at create(). `Library`
/// opens the library, and creates and destroys handles. Empty until create().
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
  /// Creates the handle at the first call; later calls return the same result.
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
