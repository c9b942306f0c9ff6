// SPDX-License-Identifier: MIT

// The functions of libcuda.so.1, and the common start of each call. The
// runtime's own table declares the functions, so a different signature does not
// compile.

#ifndef QLORA_TESTS_CUDA_DRIVER_API_H
#define QLORA_TESTS_CUDA_DRIVER_API_H

#include "runtime/Kernels/Cuda/CudaTypes.h"

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>

namespace qlora {
extern "C" {
#define QLORA_DRIVER(Name, Symbol, Parameters) CUresult Symbol Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
// Driver functions that the runtime does not call yet.
CUresult cuEventSynchronize(CUevent);
CUresult cuCtxSynchronize();
}

namespace platform {

/// The start of a call. Takes the lock, counts the call, and fails it if the
/// test requests that. Refuses it if the driver is not initialised, no context
/// is current, or an earlier operation has failed.
///
///   Call call("cuMemFree_v2");
///   if (call.refused())
///     return call.refused();
class Call {
public:
  enum Needs { kNothing, kInit, kContext };
  explicit Call(const char *symbol, Needs needs = kContext);
  /// Also rejects a call that allocates or waits during a capture.
  Call &notWhileCapturing();
  CUresult refused() const { return code; }
  /// Explains the error on stderr and returns `code`.
  CUresult fail(CUresult code, std::string_view why) const;

private:
  std::unique_lock<std::recursive_mutex> lock;
  const char *symbol;
  CUresult code;
};

void markInitialized();

/// Locked during every call and while operations run.
std::recursive_mutex &platformMutex();
/// Returns when the last call began.
std::chrono::steady_clock::time_point lastCall();

} // namespace platform
} // namespace qlora

#endif // QLORA_TESTS_CUDA_DRIVER_API_H
