// SPDX-License-Identifier: MIT

// Slots in shared memory, and the sum over them.

#include "runtime/Ranks/SharedWindow.h"

#include <algorithm>

namespace qlora {

static constexpr int kSets = 2;

static uint64_t windowBytes(int ranks) {
  return sizeof(float) * SharedWindow::kCapacity * kSets *
         static_cast<uint64_t>(ranks);
}

StatusOr<FileDescriptor> SharedWindow::create(int ranks) {
  QLORA_ASSIGN_OR_RETURN(
      int fd, HostMemory::createShared("qlora-sums", windowBytes(ranks)));
  return FileDescriptor(fd);
}

StatusOr<SharedWindow> SharedWindow::map(FileDescriptor descriptor, int rank,
                                         int ranks) {
  QLORA_ASSIGN_OR_RETURN(
      HostMemory memory,
      HostMemory::shared(descriptor.get(), windowBytes(ranks)));
  return SharedWindow(std::move(descriptor), std::move(memory), rank, ranks);
}

float *SharedWindow::slot(int ofRank) const {
  auto *floats = reinterpret_cast<float *>(memory.bytes().data());
  return floats + (set * ranks + ofRank) * kCapacity;
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
