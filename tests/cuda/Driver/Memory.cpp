// SPDX-License-Identifier: MIT

// Memory mappings with guards, keyed by address. Freed mappings stay
// unreadable.

#include "tests/cuda/Driver/Memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace qlora::platform {

static constexpr size_t kPageBytes = 4096;
static constexpr size_t kGuardBytes = 1 << 20;
static constexpr unsigned char kFresh = 0xff;
static constexpr unsigned char kAround = 0xcb;

namespace {
struct Record : Allocation {
  bool isLive = true;
};
} // namespace

/// Returns all records, keyed by base address.
static std::map<const char *, Record> &records() {
  static std::map<const char *, Record> records;
  return records;
}

/// Returns the record whose mapping, including guards, holds the address.
static Record *recordAt(const void *address) {
  const auto *at = static_cast<const char *>(address);
  auto after = records().upper_bound(at + kGuardBytes + kPageBytes);
  while (after != records().begin()) {
    --after;
    Record &record = after->second;
    if (at >= record.mapped && at < record.mapped + record.mappedBytes)
      return &record;
    if (record.mapped + record.mappedBytes + kGuardBytes < at)
      break;
  }
  return nullptr;
}

const Allocation *allocateMemory(size_t bytes, int device, size_t alignment,
                                 bool isMapped) {
  const size_t whole = (bytes + alignment - 1) / alignment * alignment;
  const size_t body = (whole + kPageBytes - 1) / kPageBytes * kPageBytes;
  const size_t mappedBytes = body + 2 * kGuardBytes;
  void *mapped = mmap(nullptr, mappedBytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    return nullptr;
  char *begin = static_cast<char *>(mapped) + kGuardBytes;
  if (mprotect(begin, body, PROT_READ | PROT_WRITE)) {
    munmap(mapped, mappedBytes);
    return nullptr;
  }
  char *base = begin + body - whole;
  std::memset(begin, kAround, size_t(base - begin));
  std::memset(base, kFresh, bytes);
  std::memset(base + bytes, kAround, whole - bytes);
  Record record;
  static_cast<Allocation &>(record) = {base,
                                       bytes,
                                       device,
                                       isMapped,
                                       static_cast<char *>(mapped),
                                       mappedBytes};
  return &(records()[base] = record);
}

bool freeMemory(const void *base, bool isPinned) {
  const auto found = records().find(static_cast<const char *>(base));
  if (found == records().end() || !found->second.isLive ||
      (found->second.device == kPinned) != isPinned)
    return false;
  Record &record = found->second;
  record.isLive = false;
  // The range stays reserved, without physical memory.
  mmap(record.mapped, record.mappedBytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return true;
}

const Allocation *findMemory(const void *address, size_t bytes) {
  const auto *at = static_cast<const char *>(address);
  const Record *record = recordAt(address);
  const bool isInside = record && record->isLive && at >= record->base &&
                        at + bytes <= record->base + record->bytes;
  return isInside ? record : nullptr;
}

std::string describeAddress(const void *address) {
  const auto *at = static_cast<const char *>(address);
  const Record *record = recordAt(address);
  if (!record)
    return fmt::format("{}, which is no device memory", address);
  const char *state = record->isLive ? "an" : "a freed";
  if (at < record->base)
    return fmt::format("{}, {} bytes before {} allocation of {} bytes", address,
                       record->base - at, state, record->bytes);
  const char *end = record->base + record->bytes;
  if (at >= end)
    return fmt::format("{}, {} bytes past the end of {} allocation of {} bytes",
                       address, at - end, state, record->bytes);
  return fmt::format("{}, byte {} of {} allocation of {} bytes", address,
                     at - record->base, state, record->bytes);
}

bool isIntact(const Allocation &allocation) {
  const char *begin = allocation.mapped + kGuardBytes;
  const char *end = allocation.mapped + allocation.mappedBytes - kGuardBytes;
  const auto isUntouched = [](char c) {
    return static_cast<unsigned char>(c) == kAround;
  };
  return std::all_of(begin, static_cast<const char *>(allocation.base),
                     isUntouched) &&
         std::all_of(static_cast<const char *>(allocation.base) +
                         allocation.bytes,
                     end, isUntouched);
}

size_t allocatedBytes(int device) {
  size_t bytes = 0;
  for (const auto &[base, record] : records())
    if (record.isLive && record.device == device)
      bytes += record.bytes;
  return bytes;
}

} // namespace qlora::platform
