// SPDX-License-Identifier: MIT

// The functions of libcuda.so.1, declared from the runtime's own table so that
// a signature that differs does not compile, and what each of them begins
// with.

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
// More of the driver, for what the runtime may call next.
CUresult cuEventSynchronize(CUevent);
CUresult cuCtxSynchronize();
}

namespace platform {

/// The begin of a call: takes the lock, counts it, fails it where the test
/// asks for that, and refuses it where the driver is not initialised, no
/// context is current, or an earlier operation has failed.
///
///   Call call("cuMemFree_v2");
///   if (call.refused())
///     return call.refused();
class Call {
public:
  enum Needs { kNothing, kInit, kContext };
  explicit Call(const char *symbol, Needs needs = kContext);
  /// The same for a call that allocates or waits, which no capture allows.
  Call &notWhileCapturing();
  CUresult refused() const { return code; }
  /// Explains on stderr and gives the code back.
  CUresult fail(CUresult code, std::string_view why) const;

private:
  std::unique_lock<std::recursive_mutex> lock;
  const char *symbol;
  CUresult code;
};

void markInitialized();

/// Held by every call, and by whoever runs operations.
std::recursive_mutex &platformMutex();
/// When the last call began.
std::chrono::steady_clock::time_point lastCall();

} // namespace platform
} // namespace qlora

#endif // QLORA_TESTS_CUDA_DRIVER_API_H
