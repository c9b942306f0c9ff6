// SPDX-License-Identifier: MIT

// NCCL as a table of functions, opened when a program with collectives starts
// on more than one GPU; a run on one GPU needs no NCCL.
//
// A table lives as long as the process. Thread-safe after open().

#ifndef QLORA_RUNTIME_DEVICE_CUDA_NCCLAPI_H
#define QLORA_RUNTIME_DEVICE_CUDA_NCCLAPI_H

#include "runtime/Base/Status.h"
#include "runtime/Kernels/Cuda/CudaTypes.h"

namespace qlora {

/// libnccl.so.2, 2.14 or later: older versions lack non-blocking communicators.
struct Nccl {
  /// Opens the library. Returns kUnavailable with a one-line message if the
  /// library is missing, too old or lacks a function.
  static StatusOr<const Nccl *> open();
  /// Opens `file` as the library, and keeps it open. For tests.
  static StatusOr<Nccl> openFile(const char *file);

  /// If `result` is an error, returns "ncclAllReduce: ncclSystemError (2)" and
  /// the library's text for its last error. kNcclInProgress is no error. An
  /// error of another rank is kAborted, any other is kUnavailable.
  Status check(ncclResult_t result, const char *what) const;

#define QLORA_NCCL(Name, Symbol, Parameters) ncclResult_t(*Name) Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  int version = 0; ///< 10000 * major + 100 * minor + patch
  /// Returns a text for the last error of this process, or null.
  const char *(*getLastError)(ncclComm_t);
  /// Splits a communicator; null before NCCL 2.18.
  ncclResult_t (*commSplit)(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_CUDA_NCCLAPI_H
