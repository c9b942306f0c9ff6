// SPDX-License-Identifier: MIT

// A table of driver functions without a driver, for tests of the device's
// logic. Device memory is host memory, streams run work immediately, and a
// capture is a list of work. The table counts calls and lets any of them fail,
// also in a FaultSweep. tests/cuda/ tests the order of work across streams.

#ifndef QLORA_TESTS_RUNTIME_DEVICE_FAKECUDADRIVER_H
#define QLORA_TESTS_RUNTIME_DEVICE_FAKECUDADRIVER_H

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Cuda/CudaApi.h"
#include "tests/runtime/FaultCalls.h"
#include "tests/runtime/LibraryCalls.h"

namespace qlora::fake {

using Work = std::function<void()>;
/// Runs the complete grid of `blocks` blocks of `threads` threads.
using Kernel = std::function<void(const qlora_cuda_args &, unsigned blocks,
                                  unsigned threads)>;

struct Machine {
  int gpus = 1;
  int version = 12040;
  int arch = 90;
  uint64_t bytes = uint64_t{1} << 30;
  std::map<std::string, Kernel, std::less<>> kernels;

  std::map<std::string, int, std::less<>> calls; ///< by member of CudaDriver
  std::string failing; ///< member whose calls fail with `error`
  int failingFrom = 1; ///< first call that fails
  CUresult error = 700;

  int unfinished = 0; ///< eventQuery calls that still return not ready
  bool isCapturing = false;
  std::vector<Work> captured;
  int64_t live = 0; ///< objects and allocations that are not freed
  std::map<CUdeviceptr, uint64_t> allocations;
  std::vector<std::string> loadedImages;
};
/// State of the driver in the running test.
inline Machine machine;

inline uint64_t usedBytes() {
  uint64_t used = 0;
  for (const auto &[address, size] : machine.allocations)
    used += size;
  return used;
}

inline CUresult run(Work work) {
  if (machine.isCapturing)
    machine.captured.push_back(std::move(work));
  else
    work();
  return 0;
}

/// Creates a handle, a pointer that is not null. It is counted until drop()
/// frees it.
template <typename Handle> CUresult make(Handle *handle) {
  *handle = reinterpret_cast<Handle>(new char);
  ++machine.live;
  return 0;
}
template <typename Handle> CUresult drop(Handle handle) {
  delete reinterpret_cast<char *>(handle);
  --machine.live;
  return 0;
}

inline CUresult getErrorName(CUresult code, const char **text) {
  *text = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return 0;
}
inline CUresult getErrorString(CUresult, const char **text) {
  *text = "as the test wants it";
  return 0;
}
inline CUresult init(unsigned) { return 0; }
inline CUresult driverGetVersion(int *version) {
  *version = machine.version;
  return 0;
}
inline CUresult deviceGetCount(int *count) {
  *count = machine.gpus;
  return 0;
}
inline CUresult deviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return 0;
}
inline CUresult deviceGetName(char *name, int size, CUdevice device) {
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU %d", device);
  return 0;
}
inline CUresult deviceGetAttribute(int *value, int attribute, CUdevice) {
  *value = attribute == kCudaAttributeMajor   ? machine.arch / 10
           : attribute == kCudaAttributeMinor ? machine.arch % 10
                                              : 4;
  return 0;
}
inline CUresult deviceGetPciBusId(char *text, int size, CUdevice) {
  std::snprintf(text, static_cast<size_t>(size), "0000:01:00.0");
  return 0;
}
inline CUresult deviceTotalMem(size_t *bytes, CUdevice) {
  *bytes = machine.bytes;
  return 0;
}
inline CUresult primaryCtxRetain(CUcontext *context, CUdevice) {
  static char one;
  *context = reinterpret_cast<CUcontext>(&one);
  ++machine.live;
  return 0;
}
inline CUresult primaryCtxRelease(CUdevice) {
  --machine.live;
  return 0;
}
inline CUresult ctxSetCurrent(CUcontext) { return 0; }
inline CUresult memGetInfo(size_t *free, size_t *total) {
  *total = machine.bytes;
  *free = machine.bytes - usedBytes() - (100u << 20);
  return 0;
}

inline CUresult moduleLoadData(CUmodule *module, const void *image) {
  machine.loadedImages.emplace_back(static_cast<const char *>(image));
  return make(module);
}
inline CUresult moduleUnload(CUmodule module) { return drop(module); }
inline CUresult moduleGetFunction(CUfunction *function, CUmodule,
                                  const char *name) {
  const auto found = machine.kernels.find(name);
  if (found == machine.kernels.end())
    return 500;
  *function = reinterpret_cast<CUfunction>(&found->second);
  return 0;
}
inline CUresult funcSetAttribute(CUfunction, int, int) { return 0; }
inline CUresult launchKernel(CUfunction function, unsigned x, unsigned,
                             unsigned, unsigned threads, unsigned, unsigned,
                             unsigned, CUstream, void **parameters, void **) {
  const auto *kernel = reinterpret_cast<const Kernel *>(function);
  const auto args = *static_cast<const qlora_cuda_args *>(parameters[0]);
  return run([=] { (*kernel)(args, x, threads); });
}

inline CUresult memAlloc(CUdeviceptr *address, size_t bytes) {
  if (bytes == 0)
    return 1;
  if (bytes > machine.bytes - usedBytes())
    return 2;
  void *memory = ::operator new (bytes, std::align_val_t{256});
  std::memset(memory, 0xa5, bytes);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  machine.allocations[*address] = bytes;
  return 0;
}
inline CUresult memFree(CUdeviceptr address) {
  if (machine.allocations.erase(address) != 1)
    return 1;
  ::operator delete (reinterpret_cast<void *>(address), std::align_val_t{256});
  return 0;
}
inline CUresult memHostAlloc(void **memory, size_t bytes, unsigned) {
  *memory = ::operator new(bytes);
  ++machine.live;
  return 0;
}
inline CUresult memHostGetDevicePointer(CUdeviceptr *address, void *memory,
                                        unsigned) {
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return 0;
}
inline CUresult memFreeHost(void *memory) {
  ::operator delete(memory);
  --machine.live;
  return 0;
}
inline CUresult copyNow(void *to, const void *from, size_t bytes) {
  return run([=] { std::memcpy(to, from, bytes); });
}
inline CUresult memcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes,
                                CUstream) {
  return copyNow(reinterpret_cast<void *>(to), from, bytes);
}
inline CUresult memcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes,
                                CUstream) {
  return copyNow(to, reinterpret_cast<const void *>(from), bytes);
}
inline CUresult memcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                CUstream) {
  return copyNow(reinterpret_cast<void *>(to),
                 reinterpret_cast<const void *>(from), bytes);
}
inline CUresult memsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes,
                              CUstream) {
  return run([=] { std::memset(reinterpret_cast<void *>(to), value, bytes); });
}

inline CUresult streamCreate(CUstream *stream, unsigned) {
  return make(stream);
}
inline CUresult streamDestroy(CUstream stream) { return drop(stream); }
/// Waiting inside a capture invalidates it.
inline CUresult streamSynchronize(CUstream) {
  return machine.isCapturing ? 900 : 0;
}
inline CUresult streamWaitEvent(CUstream, CUevent, unsigned) { return 0; }
inline CUresult streamBeginCapture(CUstream, int) {
  machine.isCapturing = true;
  machine.captured.clear();
  return 0;
}
inline CUresult streamEndCapture(CUstream, CUgraph *graph) {
  machine.isCapturing = false;
  *graph = reinterpret_cast<CUgraph>(
      new std::vector<Work>(std::move(machine.captured)));
  ++machine.live;
  return 0;
}
inline CUresult eventCreate(CUevent *event, unsigned) { return make(event); }
inline CUresult eventDestroy(CUevent event) { return drop(event); }
inline CUresult eventRecord(CUevent, CUstream) { return 0; }
/// Reports work as finished, except for the next `unfinished` queries.
inline CUresult eventQuery(CUevent) {
  return machine.unfinished > 0 && machine.unfinished-- ? kCudaNotReady : 0;
}
inline CUresult eventSynchronize(CUevent) {
  return machine.isCapturing ? 900 : 0;
}
inline CUresult eventElapsedTime(float *, CUevent, CUevent) { return 0; }
inline CUresult graphInstantiate(CUgraphExec *executable, CUgraph graph,
                                 unsigned long long) {
  *executable = reinterpret_cast<CUgraphExec>(
      new std::vector<Work>(*reinterpret_cast<std::vector<Work> *>(graph)));
  ++machine.live;
  return 0;
}
inline CUresult graphLaunch(CUgraphExec executable, CUstream) {
  for (const Work &work : *reinterpret_cast<std::vector<Work> *>(executable))
    work();
  return 0;
}
inline CUresult graphDestroy(CUgraph graph) {
  delete reinterpret_cast<std::vector<Work> *>(graph);
  --machine.live;
  return 0;
}
inline CUresult graphExecDestroy(CUgraphExec executable) {
  delete reinterpret_cast<std::vector<Work> *>(executable);
  --machine.live;
  return 0;
}

/// A string that can be a template argument.
template <size_t N> struct Name {
  constexpr Name(const char (&from)[N]) { std::copy_n(from, N, text); }
  char text[N];
};

template <typename Function> struct Counted;
template <typename... Args> struct Counted<CUresult (*)(Args...)> {
  template <Name Member, Name Symbol, CUresult (*Function)(Args...)>
  static CUresult call(Args... args) {
    const int number = ++machine.calls[Member.text];
    if (machine.failing == Member.text && number >= machine.failingFrom)
      return machine.error;
    const int error = faultAt(Symbol.text, kCuda, "");
    if (error != 0 && !onlyFrees(Symbol.text))
      return error;
    const CUresult result = Function(args...);
    return error ? error : result;
  }
};

/// Resets the state and returns the driver.
inline CudaDriver &newDriver() {
  static CudaDriver driver;
  machine = Machine();
#define QLORA_DRIVER(Member, Symbol, Parameters)                               \
  driver.Member =                                                              \
      Counted<decltype(CudaDriver::Member)>::call<#Member, #Symbol,            \
                                                  fake::Member>;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  return driver;
}

} // namespace qlora::fake

#endif // QLORA_TESTS_RUNTIME_DEVICE_FAKECUDADRIVER_H
