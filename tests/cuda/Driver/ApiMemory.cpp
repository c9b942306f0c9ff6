// SPDX-License-Identifier: MIT

// Device memory, pinned memory and copies. A copy runs when its stream reaches
// it. Source and target must each be inside of one live allocation. If the host
// memory is not pinned, the call waits for the stream, as in a real driver, and
// fails during a capture.

#include "tests/cuda/Driver/Api.h"

#include "tests/cuda/Driver/Codes.h"
#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Memory.h"
#include "tests/cuda/Driver/Objects.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <cstring>

namespace qlora {
namespace platform {

/// CU_MEMHOSTALLOC_DEVICEMAP
static constexpr unsigned kHostMapped = 2;
/// Pinned memory begins at a page boundary.
static constexpr size_t kPinnedAlignment = 4096;

std::string checkDeviceRange(const void *address, size_t bytes, int device) {
  const std::lock_guard lock(platformMutex());
  const Allocation *found = findMemory(address, bytes);
  if (!found)
    return fmt::format("{} bytes at {}", bytes, describeAddress(address));
  if (found->device == kPinned && !found->isMapped)
    return fmt::format("{} is pinned memory that no GPU can read", address);
  if (found->device != kPinned && found->device != device)
    return fmt::format("{} is memory of GPU {}, not of GPU {}", address,
                       found->device, device);
  return "";
}

} // namespace platform

using namespace platform;

static void *pointer(CUdeviceptr address) {
  return reinterpret_cast<void *>(address);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  Call call("cuMemAlloc_v2");
  if (call.notWhileCapturing().refused())
    return call.refused();
  if (!bytes)
    return call.fail(kInvalidValue, "no bytes");
  const int device = currentContext()->device;
  if (allocatedBytes(device) + bytesOfOthers(device) + bytes >
      settings().gpus[device].bytes)
    return kOutOfMemory;
  const Allocation *made = allocateMemory(bytes, device);
  if (!made)
    return kOutOfMemory;
  countEvent("device bytes", bytes);
  *address = reinterpret_cast<CUdeviceptr>(made->base);
  return kSuccess;
}

/// Adds a hash of freed device memory to the counter "bits of N bytes". A test
/// compares the ranks' counters to check that their data was equal.
static void countBits(const Allocation &memory) {
  uint32_t hash = 2166136261u; // FNV-1a
  for (size_t i = 0; i < memory.bytes; ++i)
    hash = (hash ^ static_cast<unsigned char>(memory.base[i])) * 16777619u;
  countEvent(fmt::format("bits of {} bytes", memory.bytes), hash);
}

/// Frees memory. Waits for all work first, as the driver does.
static CUresult release(Call &call, const void *base, bool isPinned) {
  if (!base)
    return kSuccess;
  runAll();
  const Allocation *memory = findMemory(base);
  if (memory && !isPinned && memory->base == base && wantsReport())
    countBits(*memory);
  if (!freeMemory(base, isPinned))
    return call.fail(kInvalidValue, describeAddress(base));
  return stickyCode();
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  Call call("cuMemFree_v2");
  if (call.notWhileCapturing().refused())
    return call.refused();
  return release(call, pointer(address), false);
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  Call call("cuMemHostAlloc");
  if (call.notWhileCapturing().refused())
    return call.refused();
  if (!bytes || flags & ~7u)
    return call.fail(kInvalidValue, "no bytes, or unknown flags");
  const Allocation *made = allocateMemory(bytes, kPinned, kPinnedAlignment,
                                          flags & kHostMapped);
  if (!made)
    return kOutOfMemory;
  countEvent(made->isMapped ? "mapped host bytes" : "pinned host bytes", bytes);
  *address = made->base;
  return kSuccess;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host,
                                      unsigned flags) {
  Call call("cuMemHostGetDevicePointer_v2");
  if (call.refused())
    return call.refused();
  const Allocation *found = findMemory(host);
  if (!found || !found->isMapped || flags)
    return call.fail(kInvalidValue,
                     "flags, or no pinned memory that is mapped: " +
                         describeAddress(host));
  *address = reinterpret_cast<CUdeviceptr>(host);
  return kSuccess;
}

CUresult cuMemFreeHost(void *address) {
  Call call("cuMemFreeHost");
  if (call.notWhileCapturing().refused())
    return call.refused();
  return release(call, address, true);
}

/// Enqueues a copy or a fill. `host` is the host address of a copy, or null.
static CUresult enqueueCopy(Call &call, CUstream stream, CUdeviceptr device,
                            size_t bytes, const void *host, Work work,
                            const char *what) {
  CUstream_st *const target = streamOf(stream);
  if (!target)
    return call.fail(kInvalidHandle, "no live stream of this context");
  if (!bytes)
    return kSuccess;
  const std::string wrong =
      checkDeviceRange(pointer(device), bytes, currentContext()->device);
  if (!wrong.empty())
    return call.fail(kInvalidValue, wrong);
  const Allocation *pinned = host ? findMemory(host) : nullptr;
  if (pinned && pinned->device != kPinned)
    return call.fail(kInvalidValue, "the host end is device memory");
  if (pinned && !findMemory(host, bytes))
    return call.fail(kInvalidValue, fmt::format("{} bytes at {}", bytes,
                                                describeAddress(host)));
  const bool isPageable = host && !pinned;
  if (isPageable && call.notWhileCapturing().refused())
    return call.refused();
  const int code = enqueue(*target, what, std::move(work));
  if (code || !isPageable)
    return code;
  countEvent("host waits");
  countEvent("pageable copies");
  runUntil(target->last);
  return stickyCode();
}

/// Returns the work of a copy. When it runs, it checks source and target again,
/// to detect memory that was freed in the meantime.
static Work copyWork(void *to, const void *from, size_t bytes,
                     const void *device) {
  return [=] {
    const void *const other = to == device ? from : to;
    const bool isLive = findMemory(device, bytes) != nullptr;
    const bool isFreed =
        describeAddress(other).find("freed") != std::string::npos;
    if (!isLive || isFreed) {
      explain(fmt::format("a copy runs after its memory was freed: {}",
                          describeAddress(isLive ? other : device)));
      return int(kIllegalAddress);
    }
    std::memmove(to, from, bytes);
    return int(kSuccess);
  };
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                              CUstream stream) {
  Call call("cuMemcpyHtoDAsync_v2");
  if (call.refused())
    return call.refused();
  return enqueueCopy(call, stream, to, bytes, from,
                     copyWork(pointer(to), from, bytes, pointer(to)),
                     "copy to the device");
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes,
                              CUstream stream) {
  Call call("cuMemcpyDtoHAsync_v2");
  if (call.refused())
    return call.refused();
  return enqueueCopy(call, stream, from, bytes, to,
                     copyWork(to, pointer(from), bytes, pointer(from)),
                     "copy to the host");
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              CUstream stream) {
  Call call("cuMemcpyDtoDAsync_v2");
  if (call.refused())
    return call.refused();
  const std::string wrong =
      bytes ? checkDeviceRange(pointer(from), bytes, currentContext()->device)
            : "";
  if (!wrong.empty())
    return call.fail(kInvalidValue, wrong);
  return enqueueCopy(call, stream, to, bytes, nullptr,
                     copyWork(pointer(to), pointer(from), bytes, pointer(to)),
                     "copy on the device");
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes,
                         CUstream stream) {
  Call call("cuMemsetD8Async");
  if (call.refused())
    return call.refused();
  const auto work = [=] {
    if (!findMemory(pointer(to), bytes)) {
      explain("a fill runs after its memory was freed");
      return int(kIllegalAddress);
    }
    std::memset(pointer(to), value, bytes);
    return int(kSuccess);
  };
  return enqueueCopy(call, stream, to, bytes, nullptr, work, "fill");
}

} // namespace qlora
