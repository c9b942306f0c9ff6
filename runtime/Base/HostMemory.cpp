// SPDX-License-Identifier: MIT

// Maps and unmaps memory with mmap. Reads memory sizes from /proc.

#include "runtime/Base/HostMemory.h"

#include "runtime/Base/FileDescriptor.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace qlora {

static constexpr int kReadWrite = PROT_READ | PROT_WRITE;

StatusOr<HostMemory> HostMemory::map(uint64_t bytes, int protection, int flags,
                                     int descriptor) {
  if (bytes == 0)
    return HostMemory();
  void *base = mmap(nullptr, bytes, protection, flags, descriptor, 0);
  if (base == MAP_FAILED)
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot get {} bytes ({:.1f} MiB) of memory: {}",
                         bytes, static_cast<double>(bytes) / (1 << 20),
                         std::strerror(errno));
  // A failure is ignored: huge pages are only faster.
  madvise(base, bytes, MADV_HUGEPAGE);
  return HostMemory(static_cast<uint8_t *>(base), bytes);
}

StatusOr<HostMemory> HostMemory::anonymous(uint64_t bytes) {
  return map(bytes, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

StatusOr<int> HostMemory::createShared(const char *name, uint64_t bytes) {
  const int descriptor = memfd_create(name, MFD_CLOEXEC);
  if (descriptor < 0)
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot create shared memory: {}",
                         std::strerror(errno));
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    Status status = Status::error(StatusCode::kResourceExhausted,
                                  "cannot get {} bytes of shared memory: {}",
                                  bytes, std::strerror(errno));
    close(descriptor);
    return status;
  }
  return descriptor;
}

StatusOr<HostMemory> HostMemory::shared(int descriptor, uint64_t bytes) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0)
    return Status::error(StatusCode::kInternal,
                         "cannot use the shared memory of the job: {}",
                         std::strerror(errno));
  if (static_cast<uint64_t>(info.st_size) != bytes)
    return Status::error(
        StatusCode::kInternal,
        "the shared memory of the job has {} bytes instead of {}", info.st_size,
        bytes);
  return map(bytes, kReadWrite, MAP_SHARED, descriptor);
}

StatusOr<HostMemory> HostMemory::readOnly(int descriptor, uint64_t bytes) {
  QLORA_ASSIGN_OR_RETURN(const FileIdentity file, FileIdentity::of(descriptor));
  // Reading a page beyond the end of the file would raise SIGBUS.
  if (file.bytes < bytes)
    return Status::dataLoss("the cached base was truncated to {} of {} bytes. "
                            "Fix: start again",
                            file.bytes, bytes);
  return map(bytes, PROT_READ, MAP_SHARED, descriptor);
}

void HostMemory::populate() const {
  if (base)
    madvise(base, size, MADV_POPULATE_READ);
}

HostMemory::HostMemory(HostMemory &&other) noexcept
    : base(std::exchange(other.base, nullptr)),
      size(std::exchange(other.size, 0)) {}

HostMemory &HostMemory::operator=(HostMemory &&other) noexcept {
  std::swap(base, other.base);
  std::swap(size, other.size);
  return *this;
}

HostMemory::~HostMemory() {
  if (base)
    munmap(base, size);
}

Status HostMemory::protect() {
  if (base && mprotect(base, size, PROT_READ) != 0)
    return Status::error(StatusCode::kInternal,
                         "cannot protect {} bytes of memory: {}", size,
                         std::strerror(errno));
  return Status::ok();
}

uint64_t procBytes(const char *file, std::string_view name) {
  std::ifstream stream(file);
  for (std::string key; stream >> key; stream.ignore(4096, '\n'))
    if (uint64_t kibibytes = 0;
        key == fmt::format("{}:", name) && stream >> kibibytes)
      return kibibytes << 10;
  return 0;
}

ProcessMemory readProcessMemory() {
  constexpr const char *kFile = "/proc/self/status";
  return {procBytes(kFile, "VmRSS"), procBytes(kFile, "VmHWM")};
}

} // namespace qlora
