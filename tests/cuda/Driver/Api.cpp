// SPDX-License-Identifier: MIT

// The common start of every call, error names, the version, GPUs and contexts.

#include "tests/cuda/Driver/Api.h"

#include "tests/cuda/Driver/Codes.h"
#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Memory.h"
#include "tests/cuda/Driver/Objects.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <algorithm>

namespace qlora {
namespace platform {

static bool isInitialized = false;
void markInitialized() { isInitialized = true; }

std::recursive_mutex &platformMutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

static std::chrono::steady_clock::time_point calledAt;
std::chrono::steady_clock::time_point lastCall() { return calledAt; }

/// Applies the host delay that a test may request, then returns the mutex.
static std::recursive_mutex &mutexOfCall() {
  delayHost();
  return platformMutex();
}

Call::Call(const char *symbol, Needs needs)
    : lock(mutexOfCall()), symbol(symbol), code(countAndInject(symbol)) {
  calledAt = std::chrono::steady_clock::now();
  if (code)
    explain(fmt::format("{}: made to fail with {}", symbol, code));
  if (!code && needs != kNothing)
    code = stickyCode();
  if (!code && needs != kNothing && !isInitialized)
    code = fail(kNotInitialized, "cuInit was not called");
  if (!code && needs == kContext && !currentContext())
    code = fail(kInvalidContext, "no context is current");
}

Call &Call::notWhileCapturing() {
  if (!code && spoilCaptures())
    code = fail(kCaptureUnsupported, "not while a stream is captured");
  return *this;
}

CUresult Call::fail(CUresult result, std::string_view why) const {
  explain(fmt::format("{}: {}", symbol, why));
  return result;
}

CUctx_st *&currentContext() {
  static thread_local CUctx_st *current = nullptr;
  return current;
}

Objects &objects() {
  static Objects objects;
  return objects;
}

static const char *nameOf(CUresult code) {
  switch (code) {
#define QLORA_PLATFORM_CODE(Name, Value, Cuda)                                 \
  case Value:                                                                  \
    return #Cuda;
    QLORA_PLATFORM_CODES(QLORA_PLATFORM_CODE)
#undef QLORA_PLATFORM_CODE
  }
  return nullptr;
}

static bool isGpu(int device) {
  return device >= 0 && size_t(device) < settings().gpus.size();
}

/// Returns the maximum shared memory of a block, in bytes, for an architecture.
static int maxShared(int arch) {
  if (arch == 80 || arch == 87)
    return 163 << 10;
  if (arch == 86 || arch == 89 || arch >= 120)
    return 99 << 10;
  return arch >= 90 ? 227 << 10 : 64 << 10;
}

/// Returns an attribute of cuda.h, or -1 if the platform does not support it.
static int attributeOf(const Gpu &gpu, int attribute) {
  switch (attribute) {
  case kMaxThreads:
    return 1024;
  case kMaxShared:
    return 48 << 10;
  case kWarpSize:
    return 32;
  case kCudaAttributeMultiprocessors:
    return 4;
  case kMaxResident:
    return 2048;
  case kUnifiedAddresses:
    return 1;
  case kCudaAttributeMajor:
    return gpu.arch / 10;
  case kCudaAttributeMinor:
    return gpu.arch % 10;
  case kMaxSharedOptin:
    return maxShared(gpu.arch);
  default:
    return -1;
  }
}

} // namespace platform

using namespace platform;

CUresult cuGetErrorName(CUresult error, const char **name) {
  *name = nameOf(error);
  return *name ? kSuccess : kInvalidValue;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = nameOf(error) ? "an error of the software platform" : nullptr;
  return *text ? kSuccess : kInvalidValue;
}

CUresult cuInit(unsigned flags) {
  Call call("cuInit", Call::kNothing);
  if (call.refused())
    return call.refused();
  if (flags)
    return call.fail(kInvalidValue, "flags are 0");
  if (settings().gpus.empty())
    return kNoDevice;
  markInitialized();
  return kSuccess;
}

CUresult cuDriverGetVersion(int *version) {
  Call call("cuDriverGetVersion", Call::kNothing);
  if (call.refused())
    return call.refused();
  *version = settings().version;
  return kSuccess;
}

CUresult cuDeviceGetCount(int *count) {
  Call call("cuDeviceGetCount", Call::kInit);
  if (call.refused())
    return call.refused();
  *count = int(settings().gpus.size());
  return kSuccess;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  Call call("cuDeviceGet", Call::kInit);
  if (call.refused())
    return call.refused();
  if (!isGpu(ordinal))
    return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
  Call call("cuDeviceGetName", Call::kInit);
  if (call.refused())
    return call.refused();
  if (!isGpu(device))
    return kInvalidDevice;
  if (bytes <= 0)
    return kInvalidValue;
  const std::string text =
      fmt::format("Software sm_{}", settings().gpus[device].arch);
  name[text.copy(name, size_t(bytes) - 1)] = '\0';
  return kSuccess;
}

CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice device) {
  Call call("cuDeviceGetPCIBusId", Call::kInit);
  if (call.refused())
    return call.refused();
  if (!isGpu(device))
    return kInvalidDevice;
  const std::string id = pciBusIdOf(device);
  if (bytes <= int(id.size()))
    return kInvalidValue;
  text[id.copy(text, id.size())] = '\0';
  return kSuccess;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  Call call("cuDeviceGetAttribute", Call::kInit);
  if (call.refused())
    return call.refused();
  if (!isGpu(device))
    return kInvalidDevice;
  const int found = attributeOf(settings().gpus[device], attribute);
  if (found < 0)
    return call.fail(kInvalidValue,
                     fmt::format("no value for attribute {}", attribute));
  *value = found;
  return kSuccess;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  Call call("cuDeviceTotalMem_v2", Call::kInit);
  if (call.refused())
    return call.refused();
  if (!isGpu(device))
    return kInvalidDevice;
  *bytes = settings().gpus[device].bytes;
  return kSuccess;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  Call call("cuDevicePrimaryCtxRetain", Call::kInit);
  if (call.refused())
    return call.refused();
  if (!isGpu(device))
    return kInvalidDevice;
  auto &contexts = objects().contexts;
  contexts.resize(settings().gpus.size());
  auto &own = contexts[device];
  if (!own) {
    own = std::make_unique<CUctx_st>();
    own->device = device;
    own->defaultStream = std::make_unique<CUstream_st>();
    own->defaultStream->context = own.get();
    own->defaultStream->priority = nextRandom();
  }
  ++own->retained;
  *context = own.get();
  return kSuccess;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Call call("cuDevicePrimaryCtxRelease_v2", Call::kInit);
  if (call.refused())
    return call.refused();
  auto &contexts = objects().contexts;
  if (!isGpu(device) || contexts.size() <= size_t(device) ||
      !contexts[device] || contexts[device]->retained == 0)
    return kInvalidContext;
  if (--contexts[device]->retained == 0)
    runAll();
  return kSuccess;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  Call call("cuCtxSetCurrent", Call::kInit);
  if (call.refused())
    return call.refused();
  if (context && context->retained == 0)
    return call.fail(kInvalidContext, "the context was released");
  currentContext() = context;
  return kSuccess;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  Call call("cuMemGetInfo_v2");
  if (call.refused())
    return call.refused();
  const int device = currentContext()->device;
  *total = settings().gpus[device].bytes;
  *free = *total - std::min(*total, allocatedBytes(device) +
                                        bytesOfOthers(device));
  return kSuccess;
}

} // namespace qlora
