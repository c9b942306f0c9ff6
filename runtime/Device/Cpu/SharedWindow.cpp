// SPDX-License-Identifier: MIT

// Slots in shared memory, and the sum over them.

#include "runtime/Device/Cpu/SharedWindow.h"

#include <algorithm>

namespace qlora {

/// Resident in every rank once it has been used. Of two ranks a slot is 1 MiB,
/// which stays in a core's cache between a write and the sum.
static constexpr uint64_t kWindowBytes = 4 << 20;
static constexpr int kSets = 2;
/// Slots begin at a cache line of their own.
static constexpr int64_t kLineFloats = 16;

StatusOr<FileDescriptor> SharedWindow::create() {
  QLORA_ASSIGN_OR_RETURN(int fd,
                         HostMemory::createShared("qlora-sums", kWindowBytes));
  return FileDescriptor(fd);
}

StatusOr<SharedWindow> SharedWindow::map(FileDescriptor descriptor, int rank,
                                         int ranks) {
  QLORA_ASSIGN_OR_RETURN(HostMemory memory,
                         HostMemory::shared(descriptor.get(), kWindowBytes));
  return SharedWindow(std::move(descriptor), std::move(memory), rank, ranks);
}

SharedWindow::SharedWindow(FileDescriptor descriptor, HostMemory memory,
                           int rank, int ranks)
    : descriptor(std::move(descriptor)), memory(std::move(memory)), rank(rank),
      ranks(ranks),
      slotCount(static_cast<int64_t>(kWindowBytes / sizeof(float)) /
                (kSets * ranks) / kLineFloats * kLineFloats) {}

float *SharedWindow::slot(int ofRank) const {
  auto *floats = reinterpret_cast<float *>(memory.bytes().data());
  return floats + (set * ranks + ofRank) * slotCount;
}

void SharedWindow::write(const float *data, int64_t count) {
  std::copy_n(data, count, slot(rank));
}

void SharedWindow::sumPart(int64_t begin, int64_t end) {
  float *sum = slot(0);
  for (int other = 1; other < ranks; ++other) {
    const float *addend = slot(other);
    for (int64_t i = begin; i < end; ++i)
      sum[i] += addend[i];
  }
}

void SharedWindow::read(float *data, int64_t count) {
  std::copy_n(slot(0), count, data);
  set = (set + 1) % kSets;
}

} // namespace qlora
